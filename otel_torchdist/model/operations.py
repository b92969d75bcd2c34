"""Operations of one rank, as recorded on a tape, in an archive or in a dump."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import msgspec

from otel_torchdist.model.kinds import Blame, Flag, How, Phase, RecordKind
from otel_torchdist.model.names import pack_label
from otel_torchdist.model.numerics import Numerics

# --- ends -------------------------------------------------------------------------------------------------------------
# The accuracy of the end of a call, decided once for each `How`.
# Sets of ends are tuples: `in` compares their members by identity, where a set would call Python's `Enum.__hash__`.


class EndAccuracy(enum.Enum):
    """The accuracy of an end."""

    CALLED = enum.auto()
    """The return of the call itself was observed."""
    AWAITED = enum.auto()
    """The return of a wait was observed."""
    DATED = enum.auto()
    """The device timestamped the end on its own clock."""
    NOTICED = enum.auto()
    """The end was noticed some time later."""
    ASSUMED = enum.auto()
    """Nothing tracks the call any more. Its end is unknown, past or future."""
    RAISED = enum.auto()
    """The call raised. It is over for this rank, which shows nothing about other ranks."""


def accuracy_of(how: How) -> EndAccuracy:
    """Classify the accuracy of an end."""
    match how:
        case How.CALL:
            return EndAccuracy.CALLED
        case How.WAIT | How.CALLBACK:
            return EndAccuracy.AWAITED
        case How.EVENT:
            return EndAccuracy.DATED
        case How.POLL | How.WATCHDOG:
            return EndAccuracy.NOTICED
        case How.UNTRACKED | How.ABANDONED:
            return EndAccuracy.ASSUMED
        case How.FAILED:
            return EndAccuracy.RAISED


def _ends(*accuracies: EndAccuracy) -> tuple[How, ...]:
    return tuple(how for how in How if accuracy_of(how) in accuracies)


AWAITED: Final = _ends(EndAccuracy.AWAITED)
BLOCKING: Final = _ends(EndAccuracy.CALLED, EndAccuracy.AWAITED)
"""Ends of calls that blocked a thread of the program until they ended."""
EXACT: Final = _ends(EndAccuracy.CALLED, EndAccuracy.AWAITED, EndAccuracy.DATED)
"""Ends that are exact enough for durations."""
COARSE: Final = _ends(EndAccuracy.NOTICED)
SUCCEEDED: Final = (*EXACT, *COARSE)
"""Ends of calls that succeeded."""
ASSUMED: Final = _ends(EndAccuracy.ASSUMED)
RAISED: Final = _ends(EndAccuracy.RAISED)
UNMET: Final = (*ASSUMED, *RAISED)
"""Ends that do not show that all members of a group had arrived."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The split sizes of one rank's `all_to_all`, in bytes.

    Attributes:
        sent: Bytes sent to each member of the group, itself included, in rank order; empty if the group has more than
            `MAX_LISTED` members.
        largest: Size of the largest sent part; 0 if unknown, as in flight recorder dumps.
        received: Bytes received from all members together.
        expected: Bytes expected from each member, in the same order; empty if unknown.
        unit: Bytes of a row of the tensor, the unit in which programs give splits; 1 if unknown.
    """

    sent: tuple[int, ...]
    largest: int
    received: int
    expected: tuple[int, ...] = ()
    unit: int = 1


# Operators of IntFlag run in Python and are several times slower than operators of int.
_END_UNSEEN: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One collective, point-to-point operation or rendezvous of one rank.

    A reader creates two objects per record: 0.1 µs each as a msgspec struct, 4 µs as a frozen dataclass of 24 fields.

    Attributes:
        number: The record's number on this tape.
        kind: `OPERATION` or `RENDEZVOUS`.
        entered_ns: When the call was entered.
        step: The rank's step at that time.
        sequence: Position in its channel, from 1: among the collectives of the group, or among the point-to-point
            operations with the same source, destination and tag.
        message_bytes: Bytes that this rank contributes.
        group: Name id of the process group.
        signature: Name id of operation, tensors and reduce op.
        call_site: Name id of the call site or call path; 0 if there is none.
        label: Name id of the label, a `LabelName` or the text given with `record_comm`; 0 if there is none.
        peer: Global rank of the peer or root; -1 if there is none.
        tag: Tag of a point-to-point operation.
        thread: Native id of the calling thread.
        flags: See `Flag`.
        returned_ns: When the call returned, if it is asynchronous, point-to-point, coalesced or runs on a device;
            None while the thread is inside the call.
        wait_entered_ns: When the first wait began; never later than a known end.
        wait_returned_ns: When a wait returned.
        started_ns: When the device started it, as precisely as `started_how` allows; None until then.
        started_how: How the start is known; UNTRACKED if the device is not queried.
        completed_ns: When the operation ended, as precisely as `how` allows; None while it is open.
        how: How the end is known.
        failure: Name id of the exception that the call raised; 0 if there is none.
        phase: Whether a backward pass made the call.
        splits: Split sizes of an `all_to_all`; None if the split is even, or `UNEVEN` with unknown sizes.
        numerics: Statistics of the values in its tensors, if they were checked.
        piece: Number of the label's piece (microbatch or bucket), from 1; 0 for none.
        blame: The cause that the exception's message gives.
        caller: The `CallerName.number` of the thread; 0 if unknown.
    """

    number: int
    kind: RecordKind
    entered_ns: int
    step: int
    sequence: int
    message_bytes: int
    group: int
    signature: int
    call_site: int
    label: int
    peer: int
    tag: int
    thread: int
    flags: Flag
    returned_ns: int | None = None
    wait_entered_ns: int | None = None
    wait_returned_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    how: How | None = None
    failure: int = 0
    started_how: How | None = None
    phase: Phase = Phase.UNKNOWN
    splits: Splits | None = None
    numerics: Numerics | None = None
    piece: int = 0
    blame: Blame = Blame.UNKNOWN
    caller: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the operation has not ended yet."""
        return self.completed_ns is None

    @property
    def label_word(self) -> int:
        """Label and piece in one word, as stored in tapes and archives."""
        return pack_label(self.label, self.piece)

    @property
    def is_queued(self) -> bool:
        """Whether the operation is enqueued on a device that has not reached it yet."""
        return self.completed_ns is None and self.started_ns is None and bool(int(self.flags) & _ON_DEVICE)

    @property
    def arrived_ns(self) -> int:
        """When this rank arrived at the operation: when it was entered, or when the device started it."""
        return self.entered_ns if self.started_ns is None else self.started_ns

    @property
    def is_timed(self) -> bool:
        """Whether the operation has ended, with begin (`arrived_ns`) and end exact enough for a duration."""
        return self.how in EXACT and self.started_how not in COARSE

    @property
    def in_flight_since_ns(self) -> int | None:
        """When an operation that has ended began to be in flight; None if unknown."""
        flags = int(self.flags)
        if flags & _ON_DEVICE:
            return self.started_ns
        if flags & _END_UNSEEN and self.returned_ns is not None:
            return self.wait_entered_ns
        return self.entered_ns

    @property
    def waiting_since_ns(self) -> int | None:
        """The start of the wait that this open operation proves; None if it proves none.

        Some operations show their end only in a wait, so before the wait nothing is known. A receive posted long ago
        counts from the start of the wait for it. Coalesced operations may be submitted much later. An operation queued
        on a device waits for that device's earlier work, and shows nothing about other ranks.
        """
        if self.completed_ns is not None:
            return None
        flags = int(self.flags)
        if flags & _ON_DEVICE:
            return self.started_ns
        if self.returned_ns is None or not flags & _END_UNSEEN:
            return self.entered_ns
        return self.wait_entered_ns if self.is_blocking else None

    @property
    def is_blocking(self) -> bool:
        """Whether the record shows a thread inside the call or inside a wait for it.

        A synchronous collective is one wait from call to end, with no times recorded in between.
        """
        if self.completed_ns is not None:
            return False
        if self.returned_ns is None:
            return True
        return self.wait_entered_ns is not None and self.wait_returned_ns is None


@dataclass(frozen=True, slots=True)
class StepMark:
    """The end of a step of one rank.

    Attributes:
        number: The record's number on this tape.
        ended_ns: When it ended.
        step: The step that ended.
        sequence: Number of collectives issued by then in the default group, on all of its backends.
        skipped: Whether a gradient scaler skipped the optimizer's step because of an overflow.
        scale: The scale of the gradient scaler used last, as float32; None if unknown.
    """

    number: int
    ended_ns: int
    step: int
    sequence: int
    skipped: bool = False
    scale: float | None = None
