"""Reads files of other tools, whatever they are called: what they are is seen from how they begin."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import BinaryIO, Final

from otel_torchdist.evidence.log import read_log
from otel_torchdist.evidence.model import Evidence, Statement
from otel_torchdist.evidence.resolve import resolved
from otel_torchdist.evidence.texts import error_file, py_spy, ras
from otel_torchdist.files.others import open_regular, reason
from otel_torchdist.files.unpacking import UnpackBudget
from otel_torchdist.naming import readable

HEAD_BYTES: Final = 64 << 10
MAX_WHOLE_BYTES: Final = 64 << 20
"""Maximum size of a file that is not read as a log."""
_PICKLE: Final = b"\x80"
_ARCHIVES: Final = (b"PK\x03\x04", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd")
_JSON: Final = (b"{", b"[")
_Reader = Callable[[str, str], Iterable[Statement]]


def read_files(paths: Iterable[Path]) -> Evidence:
    """Read files; those that hold nothing of interest are listed as such, and those that cannot be read are named.

    Args:
        paths: Regular files. The order does not matter.
    """
    statements: list[Statement] = []
    warnings: list[str] = []
    unrecognized: list[str] = []
    allowance = UnpackBudget()
    for path in paths:
        name = readable(str(path))
        try:
            found, problems = read_file(path, allowance)
        except OSError as error:
            warnings.append(f"{name}: {reason(error)}")
            continue
        statements += found
        warnings += problems
        if not found and not problems:
            unrecognized.append(name)
    known, contradictions = resolved(statements)
    return Evidence(tuple(known), (*warnings, *contradictions), tuple(unrecognized))


def read_file(path: Path, allowance: UnpackBudget | None = None) -> tuple[list[Statement], list[str]]:
    """Read one file.

    Args:
        path: The file.
        allowance: Output that compressed logs may still have; None for that of a single one.

    Returns:
        What it says, and a line for each problem; nothing of either if it is no file of the tools that are known here.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    name = readable(str(path))
    with _opened(path) as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        if head.startswith((_PICKLE, *_ARCHIVES)) or not head:
            return [], []
        if head.lstrip()[:1] in _JSON and (found := _json(stream, name)):
            return found, []
        stream.seek(0)
        text = head.decode("utf-8", "replace")
        for is_text, read in ((py_spy.is_text, py_spy.statements_of_text), (ras.is_text, ras.statements_of_text)):
            if is_text(text):
                return _whole(stream, name, read)
        return read_log(stream, name, allowance)


def _json(stream: BinaryIO, name: str) -> list[Statement]:
    content = stream.read(MAX_WHOLE_BYTES + 1)
    if len(content) > MAX_WHOLE_BYTES:
        return []
    error = error_file.statement_of(content, name) if len(content) <= error_file.MAX_BYTES else None
    if error is not None:
        return [error]
    return py_spy.statements_of_json(content, name) or ras.statements_of_json(content, name)


def _whole(stream: BinaryIO, name: str, read: _Reader) -> tuple[list[Statement], list[str]]:
    content = stream.read(MAX_WHOLE_BYTES + 1)
    problems = [f"{name}: only its first {MAX_WHOLE_BYTES} bytes are read"] if len(content) > MAX_WHOLE_BYTES else []
    return list(read(content[:MAX_WHOLE_BYTES].decode("utf-8", "replace"), name)), problems


@contextlib.contextmanager
def _opened(path: Path) -> Generator[BinaryIO]:
    # A link is followed: unlike files in a job directory, users name these themselves.
    with os.fdopen(open_regular(path.resolve()), "rb") as stream:
        yield stream
