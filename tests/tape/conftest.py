"""A directory in memory, as tapes want it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty directory on tmpfs, with mode 0700."""
    path = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)
