"""Operations and ends of steps, and how an operation is built from what its record holds.

The payload is written once; the words are written later, when what they say is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from otel_torchdist.model.kinds import Blame, Flag, Phase, RecordKind
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.model.operations import Operation, Splits, StepMark
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.layout import MAX_NUMBER, check_position, unpack_failure


def _is_operation(kind: RecordKind) -> bool:
    match kind:
        case RecordKind.OPERATION | RecordKind.RENDEZVOUS:
            return True
        case (
            RecordKind.STEP | RecordKind.LATE_COMPLETION | RecordKind.ACTIVITY | RecordKind.SPLITS | RecordKind.NUMERICS
        ):
            return False


OPERATION_KINDS: Final = {int(kind): kind for kind in RecordKind if _is_operation(kind)}
"""The records that are operations. No other becomes an `Operation`, and judging sees nothing else."""
_PHASES: Final = {int(phase): phase for phase in Phase}
_LABEL: Final = 0xFFFF
_PIECE: Final = 16
"""As in `unpack_label`, for which each operation would pay a call."""
_FLAGS_FIELD: Final = 12
"""Position in a payload."""
_FLAGS: Final = [Flag(flags) for flags in range(256)]
"""By their byte: a call of `Flag` runs in Python."""


def step_of(number: int, fields: Sequence[int]) -> StepMark:
    """Build the end of a step from a payload's fields.

    Raises:
        ValueError: It is at an impossible time or position.
    """
    ended_ns, step, sequence, _, scale = fields[:5]
    check_position(number, ended_ns, step, sequence)
    known = layout.float_of(scale) if scale else None
    return StepMark(number, ended_ns, step, sequence, bool(fields[_FLAGS_FIELD]), known)


def renewed(operation: Operation, words: Sequence[int]) -> Operation | None:
    """Return the operation updated from its words; None when a word is damaged, so that its end is unknown."""
    known = [seals.unseal(operation.number, word) if word else None for word in words]
    if known.count(None) != words.count(0):
        return None
    returned, wait_entered, wait_returned, started, completed, failure = known  # as in `layout.Word`
    entered_ns = operation.entered_ns
    # A new wait replaces the end of an earlier one that gave up.
    still_waits = None if wait_entered else operation.wait_returned_ns
    name, blame = unpack_failure(failure[0]) if failure else (operation.failure, operation.blame)
    # Field by field, and by position as in `operation_of`: that takes a tenth of the time of `replace` or of keywords.
    return Operation(
        operation.number,
        operation.kind,
        entered_ns,
        operation.step,
        operation.sequence,
        operation.message_bytes,
        operation.group,
        operation.signature,
        operation.call_site,
        operation.label,
        operation.peer,
        operation.tag,
        operation.thread,
        operation.flags,
        entered_ns + returned[0] if returned else operation.returned_ns,
        entered_ns + wait_entered[0] if wait_entered else operation.wait_entered_ns,
        entered_ns + wait_returned[0] if wait_returned else still_waits,
        entered_ns + started[0] if started else operation.started_ns,
        entered_ns + completed[0] if completed else operation.completed_ns,
        completed[1] if completed else operation.how,
        name,
        started[1] if started else operation.started_how,
        operation.phase,
        operation.splits,
        operation.numerics,
        operation.piece,
        blame,
        operation.caller,
    )


def operation_of(
    number: int, fields: tuple[int, ...], splits: Splits | None = None, numerics: Numerics | None = None
) -> Operation:
    """Build the operation from a payload's fields.

    Raises:
        ValueError: The record is not an operation's, of a kind or phase unknown to this version, or at an impossible
            time or position.
    """
    (
        entered, step, sequence, size, group, signature, call_site, label, peer, tag, thread, kind, flags, phase,
        caller,
    ) = fields  # fmt: skip
    known_kind, known_phase = OPERATION_KINDS.get(kind), _PHASES.get(phase)
    if known_kind is None:
        raise ValueError(f"record {number} is of kind {kind}, which is no operation")
    if known_phase is None:
        raise ValueError(f"record {number} is of phase {phase}, which is unknown")
    check_position(number, entered, step, sequence)
    size = size if size <= MAX_NUMBER else MAX_NUMBER
    return Operation(
        number, known_kind, entered, step, sequence, size, group, signature, call_site, label & _LABEL, peer, tag,
        thread,
        _FLAGS[flags], None, None, None, None, None, None, 0, None, known_phase, splits,
        numerics, label >> _PIECE, Blame.UNKNOWN, caller,
    )  # fmt: skip
