"""Groups that a program leaves to the interpreter: NCCL's warn then, and wait for a watchdog that found an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launch.quiet import QUIET
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.repository import REPOSITORY
from tests.support.tapes.memory import memory_directory

pytestmark = pytest.mark.thorough
WORKER = Path(__file__).parent / "workers" / "keeps_its_group.py"


def printed_at_exit(environ: dict[str, str]) -> str:
    """What a rank prints at its end that has imported Dynamo, and with it much of what we have replaced parts of."""
    with memory_directory() as base:
        own = {**os.environ, **QUIET, **environ, "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base)}
        command = [sys.executable, str(WORKER), "torch._dynamo"]
        return subprocess.run(command, env=own, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def plain() -> str:
    """What it prints without us."""
    return printed_at_exit({"OTEL_PYTHON_TORCHDIST_ENABLED": "false"})


@pytest.mark.parametrize("kernel", KERNELS)
def test_groups_are_destroyed_as_without_us(plain: str, kernel: str) -> None:
    """What outlives the interpreter in torch's dispatcher keeps no group."""
    assert plain == "destroyed\n"
    assert printed_at_exit(environ_of(kernel)) == plain
