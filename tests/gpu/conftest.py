"""Tests on a CUDA device: a world of one on NCCL, in this process, with capture switched on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from otel_torchdist.config import CaptureKernel
from otel_torchdist.native.library import chosen_library
from tests.gpu.world import World, begin_world, end_world
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.tapes.directories import memory_directory

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs a device; torch's own warnings about using one are not under test."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def a_device() -> None:
    """Skip without a device."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is false")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory in memory, for tapes and a store."""
    with memory_directory() as path:
        yield path


@pytest.fixture(params=KERNELS)
def world(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world of one whose first collective is over, recorded by either kernel."""
    for name, value in environ_of(request.param).items():
        monkeypatch.setenv(name, value)
    library = chosen_library(CaptureKernel(request.param))
    assert (library is not None) == (request.param == "native")
    one = begin_world(folder, library)
    yield one
    end_world(one)
