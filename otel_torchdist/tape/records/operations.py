"""Decodes operations and ends of steps from their records.

The payload is written once. The words are stored later, as their values become known.
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
"""Kinds of records that become an `Operation`. The judge sees only these."""
_PHASES: Final = {int(phase): phase for phase in Phase}
_LABEL: Final = 0xFFFF
_PIECE: Final = 16
"""Shift of the piece in a label word, as in `unpack_label`. Inlined to save a call per operation."""
_FLAGS_FIELD: Final = 12
"""Index in a payload."""
_FLAGS: Final = [Flag(flags) for flags in range(256)]
"""Flags by their byte: a lookup is faster than a call of `Flag`, which runs Python code."""


def step_of(number: int, fields: Sequence[int]) -> StepMark:
    """Build the end of a step from a payload's fields.

    Raises:
        ValueError: Its time or position is impossible.
    """
    ended_ns, step, sequence, _, scale_bits = fields[:5]
    check_position(number, ended_ns, step, sequence)
    scale = layout.float_of(scale_bits) if scale_bits else None
    return StepMark(number, ended_ns, step, sequence, bool(fields[_FLAGS_FIELD]), scale)


def updated_operation(operation: Operation, words: Sequence[int]) -> Operation | None:
    """Return the operation updated from its words; None if a word is damaged."""
    unsealed = [seals.unseal(operation.number, word) if word else None for word in words]
    if unsealed.count(None) != words.count(0):
        return None
    returned, wait_entered, wait_returned, started, completed, failure = unsealed  # as in `layout.Word`
    entered_ns = operation.entered_ns
    # A new wait replaces the end of an earlier wait that timed out.
    still_waits = None if wait_entered else operation.wait_returned_ns
    name, blame = unpack_failure(failure[0]) if failure else (operation.failure, operation.blame)
    # Positional arguments, as in `operation_of`: `replace` and keywords take ten times as long.
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
        ValueError: The record is not an operation, its kind or phase is unknown to this version, or its time or
            position is impossible.
    """
    (
        entered, step, sequence, size, group, signature, call_site, label, peer, tag, thread, kind, flags, phase,
        caller,
    ) = fields  # fmt: skip
    known_kind, known_phase = OPERATION_KINDS.get(kind), _PHASES.get(phase)
    if known_kind is None:
        raise ValueError(f"record {number} has kind {kind}, which is not an operation")
    if known_phase is None:
        raise ValueError(f"record {number} has phase {phase}, which is unknown")
    check_position(number, entered, step, sequence)
    size = size if size <= MAX_NUMBER else MAX_NUMBER
    return Operation(
        number, known_kind, entered, step, sequence, size, group, signature, call_site, label & _LABEL, peer, tag,
        thread,
        _FLAGS[flags], None, None, None, None, None, None, 0, None, known_phase, splits,
        numerics, label >> _PIECE, Blame.UNKNOWN, caller,
    )  # fmt: skip
