"""Directories in memory, where tapes belong, and what ended runs leave in a base directory."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
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


_BYTES = 64 << 10


def key(number: int) -> str:
    """The key of a job."""
    return f"job-{number:016x}"


def leave_tape(directory: Path, nonce: int, age_s: int) -> Path:
    """Leave the files of a rank: tape, dictionary, stacks."""
    directory.mkdir(mode=0o700, exist_ok=True)
    tape = directory / f"{nonce:016x}.tape"
    for path, size in ((tape, _BYTES), (tape.with_suffix(".names"), 100), (tape.with_suffix(".stacks"), 100)):
        path.write_bytes(b"x" * size)
        when = time.time() - age_s
        os.utime(path, (when, when))
    return tape


def leave_job(base: Path, number: int, age_s: int) -> Path:
    """Leave the files of a job of one rank."""
    return leave_tape(base / key(number), number, age_s).parent


def names_in(directory: Path) -> set[str]:
    """Names of the files in a directory."""
    return {path.name for path in directory.iterdir()}
