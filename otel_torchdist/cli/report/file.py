"""Writes the report: whole or not at all, and never over a file of somebody else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.files.owned import replace_at_once
from otel_torchdist.report.page import MARKER

_START_BYTES: Final = 256


class ReportFileError(TorchDistError):
    """The file cannot be written, or is not ours; the message names it and says why."""


def check_file(path: Path, force: bool) -> None:
    """Check that a report may be written there: nothing is there, or an earlier report.

    Args:
        path: Where the report is to be written.
        force: Whether any file may be replaced.

    Raises:
        ReportFileError: It may not.
    """
    try:
        if path.is_dir():
            raise ReportFileError(f"{path}: it is a directory; name a file, such as {path / 'report.html'}")
        if not path.parent.is_dir():
            raise ReportFileError(f"{path.parent}: no such directory")
        if os.path.lexists(path) and not force and not _is_ours(path):
            raise ReportFileError(
                f"{path}: it is no report of ours; name another file, or use --force, which replaces it"
            )
    except OSError as error:
        raise ReportFileError(f"{path}: {error.strerror}") from error


def write_file(path: Path, content: bytes) -> None:
    """Write the report in place of what is there.

    Raises:
        ReportFileError: It cannot be written; then what was there is as before.
    """
    try:
        replace_at_once(path, path.with_name(f".{path.name}.{os.getpid()}.part"), content, _usual_mode())
    except OSError as error:
        raise ReportFileError(f"{path}: {error.strerror}") from error


def _is_ours(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, "rb") as file:
        return MARKER.encode() in file.read(_START_BYTES)


def _usual_mode() -> int:
    """As any file that a user writes: the umask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
