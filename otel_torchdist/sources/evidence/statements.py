"""Statements about ranks in text output of other tools.

Texts have times of many clocks, often without a year or a time zone. So times are kept as written and never compared.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_torchdist.sources.evidence.facts import Fact, GroupMark

MAX_TEXT: Final = 400
"""Upper bound on the characters kept of a line."""


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
    """The report of a single rank. Combined, these reports may become `MISSING_AT_STORE`."""

    @property
    def is_failure(self) -> bool:
        """Whether the statement reports a failure, not only progress or state."""
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
    """The file and line of a statement.

    Attributes:
        path: The file.
        line: Line number, from 1; 0 if the file is not read by lines.
    """

    path: str
    line: int

    @property
    def text(self) -> str:
        """File and line as text: `train.log:12`."""
        return f"{self.path}:{self.line}" if self.line else self.path


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of one text about one rank.

    Attributes:
        kind: The subject.
        source: File and line.
        text: The line, or its relevant part, sanitized for display.
        rank: Global rank; None if unknown.
        local_rank: Rank on its node; None if unknown.
        pid: Process id; None if unknown.
        group: The process group that the statement names; None without one.
        fact: The parsed content; None if not parsed.
        time: The time as written in the text, or ''.
        label: The launcher's prefix of the line (`[default3]:`), or ''.
        repeated: Number of repetitions.
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
    """All statements of texts about a job.

    Attributes:
        statements: In the order of files and lines.
        warnings: A line for each failure to read, and for each contradiction.
        unrecognized: Files without a statement.
    """

    statements: tuple[Statement, ...] = ()
    warnings: tuple[str, ...] = ()
    unrecognized: tuple[str, ...] = ()


def has_failure(statements: Iterable[Statement]) -> bool:
    """Return whether any statement reports a failure."""
    return any(statement.kind.is_failure for statement in statements)
