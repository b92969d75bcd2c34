"""Directories in memory, where tapes belong."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_directory() -> Iterator[Path]:
    """An empty directory on tmpfs with mode 0700; removed at the end with all that is in it."""
    path = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
