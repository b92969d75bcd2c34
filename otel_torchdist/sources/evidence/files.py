"""Reads files of other tools, whatever they are called: what they are is seen from how they begin."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO, Final

from otel_torchdist.model.naming import readable
from otel_torchdist.sources.evidence.facts import Ended
from otel_torchdist.sources.evidence.log import read_log
from otel_torchdist.sources.evidence.statements import Evidence, Statement, StatementKind
from otel_torchdist.sources.evidence.texts import py_spy, ras, torchrun
from otel_torchdist.system.files.others import open_regular, reason
from otel_torchdist.system.files.unpacking import UnpackBudget

# Nothing is guessed: a label, a process id or a file stands for a rank only if everything that is known agrees.

_IN_NAME: Final = re.compile(r"(?:^|[^a-z])rank[-_.=]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
_ERROR_FILE_PARTS: Final = 4
"""`<run>/attempt_0/<local rank>/error.json`: folders above may have been moved."""


def rank_in_name(path: str) -> int | None:
    """Return the rank that a file's name, or that of its folder, states; None if there is none, or several."""
    parts = PurePath(path).parts[-2:]
    found = {int(match["rank"]) for part in parts for match in _IN_NAME.finditer(part)}
    return found.pop() if len(found) == 1 else None


def resolved(statements: Sequence[Statement]) -> tuple[list[Statement], list[str]]:
    """Return the statements with the ranks that could be found, and a line for each contradiction."""
    known = _Known(statements)
    found = [one if one.rank is not None else dataclasses.replace(one, rank=known.rank_of(one)) for one in statements]
    return found, [*known.contradictions, *_different_ends(found)]


class _Known:
    def __init__(self, statements: Sequence[Statement]) -> None:
        stated = [one for one in statements if one.rank is not None]
        by_file: dict[Hashable, set[int]] = {}
        by_sign: dict[Hashable, set[int]] = {}
        for one in stated:
            for sign in _signs(one):
                by_sign.setdefault(sign, set()).add(one.rank or 0)
            by_file.setdefault(one.source.path, set()).add(one.rank or 0)
        self.contradictions: list[str] = []
        self._named: dict[str, int] = {}
        self._ranks = {sign: ranks.copy().pop() for sign, ranks in by_sign.items() if len(ranks) == 1}
        for path in sorted({one.source.path for one in statements}):
            named, inside = rank_in_name(path), by_file.get(path, set[int]())
            if named is None:
                continue
            if inside - {named}:
                others = ", ".join(map(str, sorted(inside)[:8]))
                self.contradictions.append(
                    f"{path}: its name says rank {named}, its lines say rank {others}: the lines count"
                )
            else:
                self._named[path] = named

    def rank_of(self, statement: Statement) -> int | None:
        found = {self._ranks[sign] for sign in _signs(statement) if sign in self._ranks}
        # A line on another rank, such as one that missed a barrier, is no line of the file's rank.
        if statement.source.path in self._named and statement.kind is not StatementKind.NOT_REACHED:
            found.add(self._named[statement.source.path])
        return found.pop() if len(found) == 1 else None


def _signs(one: Statement) -> Iterator[Hashable]:
    """Yield what may stand for a rank."""
    path = one.source.path
    if one.label:
        yield "label", path, one.label
    if one.pid is not None:
        yield "pid", one.pid
    if isinstance(one.fact, Ended) and one.fact.error_file:
        yield "error file", PurePath(one.fact.error_file).parts[-_ERROR_FILE_PARTS:]
    if PurePath(path).name == "error.json":
        yield "error file", PurePath(path).parts[-_ERROR_FILE_PARTS:]


def _different_ends(statements: Iterable[Statement]) -> Iterator[str]:
    ends: dict[int, dict[str, Statement]] = {}
    for one in statements:
        if isinstance(one.fact, Ended) and one.rank is not None:
            ends.setdefault(one.rank, {}).setdefault(one.fact.way, one)
    for rank, ways in sorted(ends.items()):
        if len(ways) > 1:
            said = "; ".join(f"{way} ({one.source.text})" for way, one in ways.items())
            yield f"rank {rank} is said to have ended in {len(ways)} ways: {said}. Are these several attempts?"


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
    error = torchrun.statement_of_error_file(content, name) if len(content) <= torchrun.MAX_ERROR_BYTES else None
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
