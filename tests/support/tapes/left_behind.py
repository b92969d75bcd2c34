"""What ended runs leave in a base directory, as files of the same names and sizes."""

from __future__ import annotations

import os
import time
from pathlib import Path

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
