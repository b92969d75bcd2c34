"""Statements of texts about ranks. Frozen data only; nothing here was measured by us.

Texts carry times of many clocks, and often neither a year nor a time zone. They are kept as they were written, and
nothing is calculated from two of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_torchdist.sources.evidence.facts import Fact, GroupMark

MAX_TEXT: Final = 400
"""Characters of a line that are kept."""


class StatementKind(enum.Enum):
    """The subject of a statement, in the order of a report."""

    DESYNC = "behind, according to PyTorch's desync report"
    DIFFERENT_CALLS = "calls do not match"
    MISSING_AT_STORE = "has not come to the store"
    WAITS_AT_STORE = "waits for the store, or for what another rank leaves there"
    TIMED_OUT = "operation timed out"
    NOT_REACHED = "did not reach a barrier"
    PROGRESS = "progress in a group"
    WATCHDOG_STUCK = "watchdog stuck"
    CONNECTION_LOST = "connection lost"
    RAISED = "exception"
    CALLED = "call of an operation that timed out"
    CRASHED = "crash"
    ENDED = "process ended"
    MISSING = "no data from it"
    BEHIND = "different number of operations"
    ERROR = "error of the library"
    STACKS = "stacks"
    AT_STORE = "came to a barrier of the store"
    """What one rank says; put together, it may be `MISSING_AT_STORE`."""

    @property
    def is_failure(self) -> bool:
        """Whether it says that something has gone wrong, and not only how far a rank had come."""
        match self:
            case (
                StatementKind.DESYNC
                | StatementKind.DIFFERENT_CALLS
                | StatementKind.MISSING_AT_STORE
                | StatementKind.WAITS_AT_STORE
                | StatementKind.TIMED_OUT
                | StatementKind.NOT_REACHED
                | StatementKind.WATCHDOG_STUCK
                | StatementKind.CONNECTION_LOST
                | StatementKind.RAISED
                | StatementKind.CRASHED
                | StatementKind.ENDED
                | StatementKind.ERROR
            ):
                return True
            case (
                StatementKind.PROGRESS
                | StatementKind.CALLED
                | StatementKind.MISSING
                | StatementKind.BEHIND
                | StatementKind.STACKS
                | StatementKind.AT_STORE
            ):
                return False


@dataclass(frozen=True, slots=True)
class TextSource:
    """A place in a text.

    Attributes:
        path: The file.
        line: Its line, from 1; 0 if the file is not read by lines.
    """

    path: str
    line: int

    @property
    def text(self) -> str:
        """`train.log:12`."""
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of one text about one rank.

    Attributes:
        kind: What it is about.
        source: Where it is written.
        text: The line, or the part of it that matters, made safe to display.
        rank: Global rank; None if the text does not show it.
        local_rank: Rank on its node; None if unknown.
        pid: Process id; None if unknown.
        group: The process group that it is about; None if unknown, or about none.
        fact: What it says, as far as it was understood.
        time: The time as written there, or ''.
        label: What the launcher put before the line (`[default3]:`), or ''.
        repeated: How often the same was written again.
    """

    kind: StatementKind
    source: TextSource
    text: str
    rank: int | None = None
    local_rank: int | None = None
    pid: int | None = None
    group: GroupMark | None = None
    fact: Fact | None = None
    time: str = ""
    label: str = ""
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that texts say about a job.

    Attributes:
        statements: In the order of files and lines.
        warnings: What could not be read, and what contradicts itself; one line each.
        unrecognized: Files in which nothing was found.
    """

    statements: tuple[Statement, ...] = ()
    warnings: tuple[str, ...] = ()
    unrecognized: tuple[str, ...] = ()


def has_failure(statements: Iterable[Statement]) -> bool:
    """Whether any of them says that something has gone wrong."""
    return any(one.kind.is_failure for one in statements)
