"""What a text says about a rank. Frozen data only; nothing here was measured by us.

Texts carry times of many clocks, and often neither a year nor a time zone. They are kept as they were written, and
nothing is calculated from two of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.names import DEFAULT_DESCRIPTION, CallSiteName
from otel_torchdist.model.stacks import ThreadStack

MAX_TEXT: Final = 400
"""Characters of a line that are kept."""


class StatementKind(enum.Enum):
    """What a statement is about, in the order in which a report shows it."""

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
class GroupMark:
    """A process group as a line names it.

    Attributes:
        uid: torch's name of the group, the same on all members; '' in releases before 2.4.
        description: What it is for (`default_pg`), or ''.
        rank: The speaker's rank within the group.
    """

    uid: str
    description: str
    rank: int | None

    @property
    def is_default(self) -> bool:
        """Whether it is the default group, in which each rank has its global number."""
        return self.description == DEFAULT_DESCRIPTION


@dataclass(frozen=True, slots=True)
class TimedOut:
    """An operation that a watchdog or a backend gave up.

    Attributes:
        operation: `all_reduce`, …; '' if the text does not say.
        sequence: Position in its group, from 1; None before torch 2.0, and for gloo.
        elements_in: Elements of the input; None before torch 2.1.
        elements_out: Elements of the output; None before torch 2.1.
        age_ms: How long it was open; None if only the timeout is known.
        timeout_ms: Its timeout.
    """

    operation: str
    sequence: int | None
    elements_in: int | None
    elements_out: int | None
    age_ms: int | None
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a rank has come in a group.

    Attributes:
        enqueued: Sequence of the operation that it enqueued last; -1 for none.
        completed: Sequence of the operation whose end its watchdog saw last; -1 for none.
        failed: Sequence of the operation that failed; None if the line is about no operation.
    """

    enqueued: int
    completed: int
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, as its launcher saw it.

    Attributes:
        exit_code: Its exit code; None if a signal ended it.
        signal: Name of that signal; '' if none did.
        is_first: Whether the launcher observed this failure first.
        error_file: Where its exception was written, or ''.
        error: Type and first line of that exception, or ''.
    """

    exit_code: int | None
    signal: str
    is_first: bool = False
    error_file: str = ""
    error: str = ""

    @property
    def way(self) -> str:
        """`SIGKILL`, or `exit code 1`."""
        return self.signal or f"exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that a process reported.

    Attributes:
        exception: Its type and first line.
        frames: Where it was raised, innermost first.
    """

    exception: str
    frames: tuple[CallSiteName, ...]


@dataclass(frozen=True, slots=True)
class CalledAt:
    """Where an operation was called that timed out later.

    Attributes:
        frames: Innermost first.
    """

    frames: tuple[CallSiteName, ...]


@dataclass(frozen=True, slots=True)
class SeenStacks:
    """The stacks of a process.

    Attributes:
        threads: Its threads.
        holds_gil: Native id of the thread that held the GIL; None if the tool does not say, or none did.
        command: Its command line, or ''.
        crash: What crashed it, as faulthandler writes it; '' for a dump of a live process.
    """

    threads: tuple[ThreadStack, ...]
    holds_gil: int | None = None
    command: str = ""
    crash: str = ""


@dataclass(frozen=True, slots=True)
class Launched:
    """How many operations of one kind a rank has launched in a communicator, as NCCL's RAS counts them.

    Attributes:
        communicator: Its hash.
        operation: `AllReduce`, …; '' before NCCL 2.26, which counts all kinds together.
        count: How many.
        others: What the largest group of ranks has launched.
    """

    communicator: str
    operation: str
    count: int
    others: int


@dataclass(frozen=True, slots=True)
class Behind:
    """Ranks that a desync report names.

    Attributes:
        ranks: Their ranks in the group that timed out, which the report does not name.
    """

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Called:
    """A call as its fingerprint shows it.

    Attributes:
        rank: The caller's rank in its group.
        operation: `all_reduce`, …
        sequence: Its number in the group, from 0; None before torch 2.1.
        shape: Of its first tensor: `[4, 16]`; None without tensors.
        dtype: Of its tensors; '' without tensors.
    """

    rank: int
    operation: str
    sequence: int | None
    shape: str | None
    dtype: str

    @property
    def text(self) -> str:
        """`all_reduce of [4, 16] float`."""
        return f"{self.operation} of {self.shape} {self.dtype}".rstrip() if self.shape is not None else self.operation


@dataclass(frozen=True, slots=True)
class Mismatched:
    """Two calls that a rank has compared.

    Attributes:
        own: Its own call.
        other: That of another rank; None if the text is cut off before it.
    """

    own: Called
    other: Called | None


@dataclass(frozen=True, slots=True)
class AtBarrier:
    """A rank at a barrier of the job's store.

    Attributes:
        key: The barrier's name.
        rank: The rank.
        size: How many must come; 0 if the line does not say.
        joined: How many have come by then; 0 if the line does not say.
        is_over: Whether all have.
    """

    key: str
    rank: int
    size: int = 0
    joined: int = 0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Awaited:
    """A rank that waits for what another one leaves in the store.

    Attributes:
        waits: Its rank in its group.
        holder: The rank in that group for which it waits.
        is_timeout: Whether the wait timed out; else the connection to the store was lost.
    """

    waits: int
    holder: int
    is_timeout: bool


Fact = (
    Behind | Mismatched | AtBarrier | Awaited | TimedOut | Reached | Ended | Raised | CalledAt | SeenStacks | Launched
)


@dataclass(frozen=True, slots=True)
class TextSource:
    """Where something is written.

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
    """What one text says about one rank.

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
