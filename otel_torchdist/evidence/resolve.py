"""Finds the rank of a statement that does not state one, from others that do, and says where they contradict.

Nothing is guessed: a label, a process id or a file stands for a rank only if everything that is known agrees.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from otel_torchdist.evidence.model import Ended, Statement, StatementKind

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
