"""Runs of the ordinary program, recorded with both kernels, with checkpoints and without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.figures.running import Run, running
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.tapes.directories import memory_directory

SAVING: Final = "saving"
KINDS: Final = [(kernel, kind) for kernel in KERNELS for kind in ("plain", SAVING)]

for module in ("expectations", "families"):
    pytest.register_assert_rewrite(f"tests.figures.{module}")


@pytest.fixture(scope="session", params=KINDS, ids="-".join)
def run(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[Run]:
    """A run that has ended, with its tapes and its archive."""
    kernel, kind = request.param
    with memory_directory() as folder, running(warm_python, folder, kernel, kind == SAVING, environ_of(kernel)) as run:
        yield run
