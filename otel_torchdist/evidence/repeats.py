"""Bounds what is kept of a log: the same message of the same rank once, with a count."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Final

from otel_torchdist.evidence.model import Reached, Statement, StatementKind

MAX_KEPT: Final = 50_000
_LATEST: Final = (StatementKind.PROGRESS, StatementKind.STACKS)
"""Of these, the last of a rank and group counts: earlier ones show how it was before."""


class Repeats:
    """Collects statements.

    Attributes:
        dropped: How many were left out for lack of room.
    """

    def __init__(self, most: int = MAX_KEPT) -> None:
        self._most = most
        self._kept: dict[Hashable, Statement] = {}
        self.dropped = 0

    @property
    def statements(self) -> list[Statement]:
        """Those that are kept, in the order of lines."""
        return sorted(self._kept.values(), key=lambda one: one.source.line)

    def add(self, statements: Iterable[Statement]) -> None:
        """Keep what is new."""
        for one in statements:
            key = _key(one)
            before = self._kept.get(key)
            if before is None and len(self._kept) >= self._most:
                self.dropped += 1
            elif before is None:
                self._kept[key] = one
            else:
                self._kept[key] = _merged(before, one)


def _key(one: Statement) -> Hashable:
    who = (one.rank, one.local_rank, one.pid, one.label)
    if isinstance(one.fact, Reached):
        return one.kind, who, one.group, one.fact.failed
    if one.kind is StatementKind.TIMED_OUT and one.fact is not None:
        # The same text is repeated when the thread ends, then with the group's name.
        return one.kind, who, one.group.rank if one.group is not None else None, one.fact
    return one.kind, who, one.group, one.fact if one.kind is StatementKind.ENDED else one.text


def _merged(before: Statement, after: Statement) -> Statement:
    kept = after if before.kind in _LATEST else before
    group = max(before.group, after.group, key=lambda mark: bool(mark and mark.uid))
    return dataclasses.replace(kept, group=group, repeated=before.repeated + 1)
