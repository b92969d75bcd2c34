"""Operations of one rank as its tape, an archive or a dump has recorded them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import msgspec

from otel_torchdist.model.kinds import Blame, Flag, How, Phase, RecordKind
from otel_torchdist.model.names import pack_label
from otel_torchdist.model.numerics import Numerics

# --- ends -------------------------------------------------------------------------------------------------------------
# How well the end of a call is known, decided once for each `How`, for all that read tapes.
# Sets of ends are tuples: `in` compares their members by identity, where a set would call Python's `Enum.__hash__`.


class Known(enum.Enum):
    """How exactly an end is known."""

    CALLED = enum.auto()
    """The call itself was seen to return."""
    AWAITED = enum.auto()
    """A wait was seen to return."""
    DATED = enum.auto()
    """The device has dated it, on its own clock."""
    NOTICED = enum.auto()
    """It was noticed some time later."""
    ASSUMED = enum.auto()
    """Nothing but that nobody follows the call any more: when it ends, or has ended, is unknown."""
    RAISED = enum.auto()
    """The call raised: for this rank it was over then, and nothing follows for others."""


def known_of(how: How) -> Known:
    """Classify an end."""
    match how:
        case How.CALL:
            return Known.CALLED
        case How.WAIT | How.CALLBACK:
            return Known.AWAITED
        case How.EVENT:
            return Known.DATED
        case How.POLL | How.WATCHDOG:
            return Known.NOTICED
        case How.UNTRACKED | How.ABANDONED:
            return Known.ASSUMED
        case How.FAILED:
            return Known.RAISED


def _ends(*wanted: Known) -> tuple[How, ...]:
    return tuple(how for how in How if known_of(how) in wanted)


AWAITED: Final = _ends(Known.AWAITED)
BLOCKING: Final = _ends(Known.CALLED, Known.AWAITED)
"""Ends until which a thread of the program was blocked."""
EXACT: Final = _ends(Known.CALLED, Known.AWAITED, Known.DATED)
"""Known well enough for durations."""
COARSE: Final = _ends(Known.NOTICED)
SUCCEEDED: Final = (*EXACT, *COARSE)
"""The call has done what it should."""
ASSUMED: Final = _ends(Known.ASSUMED)
RAISED: Final = _ends(Known.RAISED)
UNMET: Final = (*ASSUMED, *RAISED)
"""Says nothing about when the members of a group met."""


@dataclass(frozen=True, slots=True)
class Splits:
    """How an `all_to_all` of one rank is split, in bytes.

    Attributes:
        sent: What it sends to each member of the group, itself included, in the order of their ranks; empty if the
            group has more than `MAX_LISTED` members.
        largest: The largest of these parts; 0 if it is not known, as from dumps of a flight recorder.
        received: What it receives from all members together.
        expected: What it expects from each member, in the same order; empty if that is not known.
        unit: Bytes of a row of the tensor, in which a program counts; 1 if that is not known.
    """

    sent: tuple[int, ...]
    largest: int
    received: int
    expected: tuple[int, ...] = ()
    unit: int = 1


# Operators of IntFlag run in Python and are several times slower than those of int.
_END_UNSEEN: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)
_ON_DEVICE: Final = int(Flag.ON_DEVICE)


class Operation(msgspec.Struct, frozen=True, gc=False):
    """One collective, point-to-point operation or rendezvous of one rank.

    A reader makes two for each record; as a frozen dataclass of 24 fields each would take 4 µs, as this 0.1 µs.

    Attributes:
        number: The record's number on this tape.
        kind: `OPERATION` or `RENDEZVOUS`.
        entered_ns: When the call was entered.
        step: The rank's step at that time.
        sequence: Position among the collectives of its group; for point-to-point among those with the same
            source, destination and tag. Counted from 1.
        message_bytes: Bytes that this rank contributes.
        group: Name id of the process group.
        signature: Name id of operation, tensors and reduce op.
        call_site: Name id of the call site, or of a path to it (0 when there is none).
        label: Name id of the label (0 when there is none): a `LabelName`, or the text given with `record_comm`.
        peer: Global rank of the peer or root; -1 when there is none.
        tag: Tag of a point-to-point operation.
        thread: Native id of the calling thread.
        flags: See `Flag`.
        returned_ns: When the call returned, if it is asynchronous, point-to-point, coalesced or runs on a device;
            None while the thread is inside.
        wait_entered_ns: When the first wait began; at the latest when the operation ended, once that is known.
        wait_returned_ns: When a wait returned.
        started_ns: When the device started it, as precisely as `started_how` allows; None until then.
        started_how: How the start is known; UNTRACKED where the device is not queried.
        completed_ns: When the operation ended, as precisely as `how` allows; None while it is open.
        how: How the end is known.
        failure: Name id of the exception that it raised (0 when there is none).
        phase: Whether a backward pass made the call.
        splits: How an `all_to_all` is split; None if it is even, or if it is `UNEVEN` and this is not known.
        numerics: The values in its tensors, if they were looked at.
        piece: Which of its label's pieces (microbatches, buckets) it is for, from 1; 0 for none.
        blame: What the message of that exception blames.
        caller: Which of the tape's callers the thread is, see `CallerName`; 0 if that is not known.
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
        """Label and piece in one word, as tapes and archives have them."""
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
        """Whether it has ended, and begin and end are known well enough for a duration, from `arrived_ns` on."""
        return self.how in EXACT and self.started_how not in COARSE

    @property
    def in_flight_since_ns(self) -> int | None:
        """Since when an operation that has ended was in flight; None if that is not known."""
        flags = int(self.flags)
        if flags & _ON_DEVICE:
            return self.started_ns
        if flags & _END_UNSEEN and self.returned_ns is not None:
            return self.wait_entered_ns
        return self.entered_ns

    @property
    def waiting_since_ns(self) -> int | None:
        """Since when the operation's being open is evidence of waiting; None when it is not evidence.

        Some operations show their end only in a wait, so before a wait nothing is known; a receive posted long ago is
        not late because a wait for it begins now. Coalesced operations may be submitted much later. An operation
        queued on a device waits for that device's earlier work: however old, it shows nothing about other ranks.
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
        """Whether a thread is inside the call or inside a wait for it, as far as the record shows.

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
        sequence: Collectives that the rank had issued in the default group by then, on all of its backends.
        skipped: Whether a gradient scaler has left out the optimizer's step, because of an overflow.
        scale: The scale of the gradient scaler that was used last, as float32; None if it is not known.
    """

    number: int
    ended_ns: int
    step: int
    sequence: int
    skipped: bool = False
    scale: float | None = None
