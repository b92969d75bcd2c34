"""Writes an output file of a command: completely or not at all, and never over a file of another program.

A link is followed: its target is replaced, and the link stays. Pipes and devices are refused, because they cannot be
replaced.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, cast

from otel_torchdist.errors import TorchDistError

_START_BYTES: Final = 256
"""`check_output` searches as many bytes for the mark."""
_COMPRESSION_LEVEL: Final = 6


class OutputError(TorchDistError):
    """A file cannot be written, or belongs to another program; the message names the file and the reason."""


def check_output(path: Path, mark: bytes, force: bool) -> None:
    """Check that a file may be written: its directory exists, and it is missing, empty, or was written by us.

    Args:
        path: The file.
        mark: Bytes near the start of all files written by us.
        force: Whether a file of another program may be replaced.

    Raises:
        OutputError: The file may not be written.
    """
    try:
        if path.is_dir():
            raise OutputError(f"{path}: it is a directory; name a file")
        if path.exists() and not path.is_file():
            raise OutputError(f"{path}: it is not a file that can be replaced; name another one")
        if not Path(os.path.realpath(path)).parent.is_dir():
            raise OutputError(f"{path.parent}: no such directory")
        if path.exists() and path.stat().st_size and not force and mark not in _start_of(path):
            raise OutputError(
                f"{path}: otel-torchdist has not written it; name another file, or use --force, which replaces it"
            )
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


def write_output(path: Path, pieces: Iterable[bytes]) -> int:
    """Write or replace a file, compressed if its name ends in `.gz`.

    Returns:
        Its size in bytes.

    Raises:
        OutputError: It cannot be written; an earlier file is unchanged.
    """
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".otel-torchdist-{secrets.token_hex(8)}.part")
    try:
        with open(unfinished, "xb") as file:
            if path.name.endswith(".gz"):
                with gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, cast("IO[bytes]", file), mtime=0) as packed:
                    packed.writelines(pieces)
            else:
                file.writelines(pieces)
            size = file.tell()
        os.replace(unfinished, target)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
    return size


def _start_of(path: Path) -> bytes:
    with open(path, "rb") as file:
        start = file.read(_START_BYTES)
    if not start.startswith(b"\x1f\x8b"):
        return start
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start, _START_BYTES)
    return b""
