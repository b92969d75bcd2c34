"""Facts about a rank in text output of tools: a class for each kind."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.names import DEFAULT_DESCRIPTION, CallSiteName
from otel_torchdist.model.rank_state.lives import name_signal
from otel_torchdist.model.rank_state.stacks import ThreadStack


@dataclass(frozen=True, slots=True)
class GroupMark:
    """A process group, as named in a log line.

    Attributes:
        uid: torch's name of the group, the same on all members; '' in releases before 2.4.
        description: Its purpose (`default_pg`), or ''.
        rank: The author's rank within the group; None if unknown.
    """

    uid: str
    description: str
    rank: int | None

    @property
    def is_default(self) -> bool:
        """Whether it is the default group, where ranks are global ranks."""
        return self.description == DEFAULT_DESCRIPTION


@dataclass(frozen=True, slots=True)
class OperationTimeout:
    """An operation aborted by a watchdog or a backend at its timeout.

    Attributes:
        operation: `all_reduce`, …; '' if not stated.
        sequence: Position in its group, from 1; None before torch 2.0, and for gloo.
        elements_in: Elements of the input; None before torch 2.1.
        age_ms: Time since its start; None if only the timeout is known.
        timeout_ms: Its timeout.
    """

    operation: str
    sequence: int | None
    elements_in: int | None
    age_ms: int | None
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class ReportedProgress:
    """The progress of a rank in a group.

    Attributes:
        enqueued: Sequence number of the last enqueued operation; -1 for none.
        completed: Sequence number of the last operation whose end the watchdog noticed; -1 for none.
        failed: Sequence number of the failed operation; None if the line is not about a failure.
    """

    enqueued: int
    completed: int
    failed: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The exit of a process, as its launcher reports it.

    Attributes:
        exit_code: Its exit code; None if a signal killed it.
        signal: Name of the signal; '' if it exited by itself.
        is_first: Whether the launcher observed this failure first.
        error_file: Path of the file with its exception, or ''.
        error: Type and first line of its exception, or ''.
    """

    exit_code: int | None
    signal: str
    is_first: bool = False
    error_file: str = ""
    error: str = ""

    @property
    def outcome(self) -> str:
        """Signal or exit code as text: `SIGKILL`, `exit code 1`."""
        return self.signal or f"exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class ReportedException:
    """An exception that a process reported.

    Attributes:
        exception: Its type and first line.
        frames: Stack frames of the raise, innermost first.
    """

    exception: str
    frames: tuple[CallSiteName, ...]


@dataclass(frozen=True, slots=True)
class TimedOutCallStack:
    """The stack of the call whose operation timed out.

    Attributes:
        frames: Stack frames, innermost first.
    """

    frames: tuple[CallSiteName, ...]


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """The stacks of a process.

    Attributes:
        gil_holder: Native id of the thread that held the GIL; None without one, or if unknown.
        command: Its command line, or ''.
        crash: Cause of its crash, as written by faulthandler; '' for a live process.
    """

    threads: tuple[ThreadStack, ...]
    gil_holder: int | None = None
    command: str = ""
    crash: str = ""


@dataclass(frozen=True, slots=True)
class LaunchCount:
    """The number of operations of one kind that a rank launched in a communicator, as counted by NCCL's RAS.

    Attributes:
        communicator: Hash of the communicator.
        operation: `AllReduce`, …; '' before NCCL 2.26, which counts all kinds together.
        count: Operations launched by this rank.
        usual_count: Operations launched by most other ranks.
    """

    communicator: str
    operation: str
    count: int
    usual_count: int


@dataclass(frozen=True, slots=True)
class LaggingRanks:
    """The ranks named in a desync report.

    Attributes:
        ranks: Ranks within the group that timed out. The report does not name the group.
    """

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FingerprintedCall:
    """A call, from its fingerprint.

    Attributes:
        rank: The caller's rank in its group.
        operation: `all_reduce`, …
        sequence: Number in the group, from 0; None before torch 2.1.
        shape: Shape of the first tensor, `[4, 16]`; None without tensors.
        dtype: Dtype of the tensors; '' without tensors.
    """

    rank: int
    operation: str
    sequence: int | None
    shape: str | None
    dtype: str

    @property
    def text(self) -> str:
        """The call in words: `all_reduce of [4, 16] float`."""
        return f"{self.operation} of {self.shape} {self.dtype}".rstrip() if self.shape is not None else self.operation


@dataclass(frozen=True, slots=True)
class CallMismatch:
    """A rank's call and the call of another rank that differs from it.

    Attributes:
        own: The call of the reporting rank.
        other: The call of another rank; None if the text ends before it.
    """

    own: FingerprintedCall
    other: FingerprintedCall | None


@dataclass(frozen=True, slots=True)
class BarrierArrival:
    """The arrival of a rank at a barrier of the job's store.

    Attributes:
        key: The barrier's key in the store.
        rank: Global rank.
        size: Number of ranks that must arrive; 0 if not stated.
        joined: Number of ranks that have arrived so far; 0 if not stated.
        is_over: Whether all ranks have arrived.
    """

    key: str
    rank: int
    size: int = 0
    joined: int = 0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class StoreWait:
    """A rank's wait for a value that another rank writes to the store.

    Attributes:
        waiter: The waiting rank, within its group.
        writer: The rank within that group that must write the value.
        is_timeout: Whether the wait timed out. Otherwise the connection to the store was lost.
    """

    waiter: int
    writer: int
    is_timeout: bool


Fact = (
    LaggingRanks
    | CallMismatch
    | BarrierArrival
    | StoreWait
    | OperationTimeout
    | ReportedProgress
    | ProcessExit
    | ReportedException
    | TimedOutCallStack
    | ProcessStacks
    | LaunchCount
)


_SHELL_OFFSET: Final = 128
"""Shells report a signal as this number plus the signal."""
_SIGNALS: Final = frozenset(map(int, signal.Signals))


def exit_from_code(code: int, is_first: bool = False, error_file: str = "", error: str = "") -> ProcessExit:
    """Convert a launcher's exit code, which is negative for a signal."""
    number = -code if code < 0 else code - _SHELL_OFFSET
    name = name_signal(number) if code < 0 or number in _SIGNALS else ""
    return ProcessExit(None if name else code, name, is_first, error_file, error)
