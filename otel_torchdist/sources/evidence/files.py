"""Reads files of other tools, recognized by their first bytes, not by their names."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO, Final

from otel_torchdist.model.text import readable
from otel_torchdist.sources.evidence.facts import ProcessExit
from otel_torchdist.sources.evidence.log import read_log
from otel_torchdist.sources.evidence.statements import Evidence, Statement, StatementKind
from otel_torchdist.sources.evidence.texts import py_spy, ras, torchrun
from otel_torchdist.system.files.others import open_regular, reason
from otel_torchdist.system.files.unpacking import UnpackBudget

# Ranks are never guessed: a label, process id or file identifies a rank only if all statements agree on it.

_RANK_IN_NAME: Final = re.compile(r"(?:^|[^a-z])rank[-_.=]?(?P<rank>\d{1,7})(?!\d)", re.IGNORECASE)
_ERROR_FILE_PARTS: Final = 4
"""Last path components compared: `<run>/attempt_0/<local rank>/error.json`. Folders above may have been moved."""


def rank_in_name(path: str) -> int | None:
    """Return the rank in the name of a file or its folder; None if there is none, or several."""
    parts = PurePath(path).parts[-2:]
    ranks = {int(match["rank"]) for part in parts for match in _RANK_IN_NAME.finditer(part)}
    return ranks.pop() if len(ranks) == 1 else None


def resolve_ranks(statements: Sequence[Statement]) -> tuple[list[Statement], list[str]]:
    """Return the statements with ranks filled in where possible, and a line for each contradiction."""
    index = _RankIndex(statements)
    attributed = [
        statement if statement.rank is not None else dataclasses.replace(statement, rank=index.rank_of(statement))
        for statement in statements
    ]
    return attributed, [*index.contradictions, *_contradicting_exits(attributed)]


class _RankIndex:
    """The ranks identified by labels, process ids, error files and file names."""

    def __init__(self, statements: Sequence[Statement]) -> None:
        stated = [statement for statement in statements if statement.rank is not None]
        by_file: dict[Hashable, set[int]] = {}
        by_key: dict[Hashable, set[int]] = {}
        for statement in stated:
            for key in _rank_keys(statement):
                by_key.setdefault(key, set()).add(statement.rank or 0)
            by_file.setdefault(statement.source.path, set()).add(statement.rank or 0)
        self.contradictions: list[str] = []
        self._named: dict[str, int] = {}
        self._ranks = {key: ranks.copy().pop() for key, ranks in by_key.items() if len(ranks) == 1}
        for path in sorted({statement.source.path for statement in statements}):
            named, stated_ranks = rank_in_name(path), by_file.get(path, set[int]())
            if named is None:
                continue
            if stated_ranks - {named}:
                others = ", ".join(map(str, sorted(stated_ranks)[:8]))
                self.contradictions.append(
                    f"{path}: its name says rank {named}, its lines say rank {others}: the lines take precedence"
                )
            else:
                self._named[path] = named

    def rank_of(self, statement: Statement) -> int | None:
        ranks = {self._ranks[key] for key in _rank_keys(statement) if key in self._ranks}
        # A line about a rank that missed a barrier is written by another rank.
        if statement.source.path in self._named and statement.kind is not StatementKind.NOT_REACHED:
            ranks.add(self._named[statement.source.path])
        return ranks.pop() if len(ranks) == 1 else None


def _rank_keys(statement: Statement) -> Iterator[Hashable]:
    """Yield keys that may identify the rank of a statement."""
    path = statement.source.path
    if statement.label:
        yield "label", path, statement.label
    if statement.pid is not None:
        yield "pid", statement.pid
    if isinstance(statement.fact, ProcessExit) and statement.fact.error_file:
        yield "error file", PurePath(statement.fact.error_file).parts[-_ERROR_FILE_PARTS:]
    if PurePath(path).name == "error.json":
        yield "error file", PurePath(path).parts[-_ERROR_FILE_PARTS:]


def _contradicting_exits(statements: Iterable[Statement]) -> Iterator[str]:
    by_rank: dict[int, dict[str, Statement]] = {}
    for statement in statements:
        if isinstance(statement.fact, ProcessExit) and statement.rank is not None:
            by_rank.setdefault(statement.rank, {}).setdefault(statement.fact.outcome, statement)
    for rank, outcomes in sorted(by_rank.items()):
        if len(outcomes) > 1:
            exits = "; ".join(f"{outcome} ({statement.source.text})" for outcome, statement in outcomes.items())
            yield f"rank {rank} has {len(outcomes)} different exits: {exits}. Are these several attempts?"


HEAD_BYTES: Final = 64 << 10
MAX_WHOLE_BYTES: Final = 64 << 20
"""Maximum bytes of a file that is not a log."""
_PICKLE: Final = b"\x80"
_ARCHIVES: Final = (b"PK\x03\x04", b"\xfd7zXZ", b"BZh", b"\x28\xb5\x2f\xfd")
_JSON: Final = (b"{", b"[")
_Reader = Callable[[str, str], Iterable[Statement]]


def read_files(paths: Iterable[Path]) -> Evidence:
    """Read files. Unrecognized files are listed, and unreadable files get a warning.

    Args:
        paths: Regular files, in any order.
    """
    statements: list[Statement] = []
    warnings: list[str] = []
    unrecognized: list[str] = []
    budget = UnpackBudget()
    for path in paths:
        name = readable(str(path))
        try:
            file_statements, problems = read_file(path, budget)
        except OSError as error:
            warnings.append(f"{name}: {reason(error)}")
            continue
        statements += file_statements
        warnings += problems
        if not file_statements and not problems:
            unrecognized.append(name)
    attributed, contradictions = resolve_ranks(statements)
    return Evidence(tuple(attributed), (*warnings, *contradictions), tuple(unrecognized))


def read_file(path: Path, budget: UnpackBudget | None = None) -> tuple[list[Statement], list[str]]:
    """Read one file.

    Args:
        path: The file.
        budget: Remaining budget for decompressed bytes; None for the budget of a single log.

    Returns:
        Its statements, and a line for each problem. Both are empty for a file of an unknown tool.

    Raises:
        OSError: It cannot be read, or is not a regular file.
    """
    name = readable(str(path))
    with _opened(path) as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        if head.startswith((_PICKLE, *_ARCHIVES)) or not head:
            return [], []
        if head.lstrip()[:1] in _JSON and (statements := _read_json(stream, name)):
            return statements, []
        stream.seek(0)
        text = head.decode("utf-8", "replace")
        for is_text, read in ((py_spy.is_text, py_spy.statements_of_text), (ras.is_text, ras.statements_of_text)):
            if is_text(text):
                return _read_whole(stream, name, read)
        return read_log(stream, name, budget)


def _read_json(stream: BinaryIO, name: str) -> list[Statement]:
    content = stream.read(MAX_WHOLE_BYTES + 1)
    if len(content) > MAX_WHOLE_BYTES:
        return []
    error = torchrun.statement_of_error_file(content, name) if len(content) <= torchrun.MAX_ERROR_BYTES else None
    if error is not None:
        return [error]
    return py_spy.statements_of_json(content, name) or ras.statements_of_json(content, name)


def _read_whole(stream: BinaryIO, name: str, read: _Reader) -> tuple[list[Statement], list[str]]:
    content = stream.read(MAX_WHOLE_BYTES + 1)
    problems = [f"{name}: only its first {MAX_WHOLE_BYTES} bytes are read"] if len(content) > MAX_WHOLE_BYTES else []
    return list(read(content[:MAX_WHOLE_BYTES].decode("utf-8", "replace"), name)), problems


@contextlib.contextmanager
def _opened(path: Path) -> Generator[BinaryIO]:
    # Links are followed: unlike files in a job directory, these paths come from the user.
    with os.fdopen(open_regular(path.resolve()), "rb") as stream:
        yield stream
