"""Writes dumps into a folder: all of them or none, and never over files of others."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final

from otel_torchdist.errors import TorchDistError
from otel_torchdist.flight.export.pickles import PREFIX, is_marked

_FINAL: Final = re.compile(re.escape(PREFIX) + r"\d+")
_UNFINISHED: Final = ".otel-torchdist-"
"""Begins the names of files that are still being written; `torchfrtrace` tries to open all that contain `PREFIX`."""
_START_BYTES: Final = 256
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FolderError(TorchDistError):
    """A folder cannot be written, or holds files of others; the message names it and says why."""


def check_folder(folder: Path, force: bool) -> None:
    """Check that a folder may be written: it is missing, empty, or holds an earlier export and nothing else.

    Args:
        folder: Where dumps are to be written.
        force: Whether it may hold anything.

    Raises:
        FolderError: It may not.
    """
    try:
        foreign = sorted(entry.name for entry in os.scandir(folder) if not _is_ours(entry)) if folder.exists() else []
    except OSError as error:
        raise FolderError(f"{folder}: {error.strerror}") from error
    if foreign and not force:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise FolderError(
            f"{folder}: it holds files that no earlier export has written ({foreign[0]}{more}); "
            "name another folder, or use --force, which replaces dumps there and leaves other files alone"
        )


def write_dumps(folder: Path, dumps: Iterable[tuple[int, bytes]]) -> int:
    """Write dumps into a folder in place of all dumps that are there; until all are written, nothing is replaced.

    Args:
        folder: Created if it does not exist.
        dumps: Ranks, each with the content of its file.

    Returns:
        How many bytes were written.

    Raises:
        FolderError: It cannot be written; then it is as it was before.
    """
    created = not folder.exists()
    written: dict[Path, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        total = 0
        for rank, content in dumps:
            unfinished = folder / f"{_UNFINISHED}{rank}.{os.getpid()}.part"
            written[unfinished] = folder / f"{PREFIX}{rank}"
            unfinished.write_bytes(content)
            total += len(content)
        with _uninterrupted():
            _replace(folder, written)
    except OSError as error:
        raise FolderError(f"{error.filename or folder}: {error.strerror}") from error
    finally:
        for unfinished in written:
            unfinished.unlink(missing_ok=True)
        if created:
            with contextlib.suppress(OSError):  # it holds the dumps
                folder.rmdir()
    return total


def _replace(folder: Path, written: dict[Path, Path]) -> None:
    for unfinished, final in written.items():
        os.replace(unfinished, final)
    kept = {final.name for final in written.values()}
    for entry in list(os.scandir(folder)):
        is_stale = _FINAL.fullmatch(entry.name) or entry.name.startswith(_UNFINISHED)
        if is_stale and entry.name not in kept:
            os.unlink(entry)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file(follow_symlinks=False):
        return False
    if entry.name.startswith(_UNFINISHED):
        return True  # left by an export that was killed
    if not _FINAL.fullmatch(entry.name):
        return False
    with open(entry, "rb") as file:
        return is_marked(file.read(_START_BYTES))


@contextlib.contextmanager
def _uninterrupted() -> Generator[None, None, None]:
    """Put signals off that would end the command between two files."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
