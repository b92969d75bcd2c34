"""torchelastic's error file: the exception that ended a rank, as written by `torch.distributed.elastic`'s `@record`.

torchrun names the file in each worker's environment. Nothing else of the environment, which may hold secrets, is kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.files.others import read_regular
from otel_torchdist.job.runs.deaths import MAX_ERROR
from otel_torchdist.naming import readable
from otel_torchdist.tape.names.decoding import DecodingError, decode_json

VARIABLE: Final = b"TORCHELASTIC_ERROR_FILE="
MAX_ENVIRONMENT: Final = 4 << 20
MAX_FILE_BYTES: Final = 1 << 20
"""The file contains the traceback too."""


@dataclass(frozen=True, slots=True)
class _Extra:
    py_callstack: str = ""
    timestamp: str | int = ""


@dataclass(frozen=True, slots=True)
class RecordedError:
    """The exception in an error file; programs may write a text of their own instead.

    Attributes:
        message: Its type and message, which may have several lines.
        extraInfo: When it was raised, and its traceback.
    """

    message: str
    extraInfo: _Extra = _Extra()

    @property
    def summary(self) -> str:
        """The first line of the message."""
        return self.message.strip().partition("\n")[0].strip()


@dataclass(frozen=True, slots=True)
class _ErrorFile:
    message: RecordedError | str


def error_file_of(pid: int) -> Path | None:
    """Return the error file of a live process of this user; None if it has none, or belongs to another user."""
    folder = Path(f"/proc/{pid}")
    try:
        if os.stat(folder).st_uid != os.geteuid():
            return None
        with (folder / "environ").open("rb") as stream:
            environment = stream.read(MAX_ENVIRONMENT)
    except OSError:
        return None
    found = next((entry for entry in environment.split(b"\0") if entry.startswith(VARIABLE)), VARIABLE)
    path = Path(os.fsdecode(found[len(VARIABLE) :]))
    return path if path.is_absolute() else None


def error_in(path: Path) -> str:
    """Return type and first line of the exception (`ValueError: loss is nan`); '' if the file does not show it."""
    try:
        found = decoded_error(read_regular(path, MAX_FILE_BYTES, os.geteuid()))
    except (OSError, ValueError):
        return ""
    return readable(found.summary, MAX_ERROR)[:MAX_ERROR] if found is not None else ""


def decoded_error(content: bytes) -> RecordedError | None:
    """Return the exception in an error file; None if it is no such file."""
    try:
        message = decode_json(content, _ErrorFile).message
    except DecodingError:
        return None
    return RecordedError(message) if isinstance(message, str) else message
