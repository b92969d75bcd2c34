"""Facts in texts about a rank: a row of this module for each kind."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.lives import name_signal
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, CallSiteName
from otel_torchdist.model.stacks import ThreadStack


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
        age_ms: How long it was open; None if only the timeout is known.
        timeout_ms: Its timeout.
    """

    operation: str
    sequence: int | None
    elements_in: int | None
    age_ms: int | None
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Reached:
    """The progress of a rank in a group.

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
    """The end of a process, as its launcher saw it.

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
    """The call site of an operation that timed out later.

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
    """The number of operations of one kind that a rank has launched in a communicator, as NCCL's RAS counts them.

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


_BY_SHELL: Final = 128
_SIGNALS: Final = frozenset(int(one) for one in signal.Signals)


def ended(code: int, is_first: bool = False, error_file: str = "", error: str = "") -> Ended:
    """Return how a process ended whose launcher states an exit code: negative for a signal, 128 more behind a shell."""
    number = -code if code < 0 else code - _BY_SHELL
    name = name_signal(number) if code < 0 or number in _SIGNALS else ""
    return Ended(None if name else code, name, is_first, error_file, error)
