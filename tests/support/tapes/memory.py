"""Directories in memory, where tapes belong."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_directory() -> Iterator[Path]:
    """An empty directory on tmpfs with mode 0700; removed at the end with all that is in it.

    It is alone in its parent: where it is a job's directory, those beside it are looked at as jobs of the same user.
    """
    parent = Path(tempfile.mkdtemp(prefix="otel-torchdist-test-", dir="/dev/shm"))
    parent.chmod(0o711)  # a test may let other users into the directory itself
    path = parent / "memory"
    path.mkdir(0o700)
    try:
        yield path
    finally:
        shutil.rmtree(parent, ignore_errors=True)
