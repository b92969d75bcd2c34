"""Operations as they lie in the records of a tape."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.tape.records import Operation


def renewed(operation: Operation, words: Sequence[int]) -> Operation | None:
    """The operation with what its words say; None when one of them is damaged, so that nobody knows if it ended."""
    known = [layout.unseal(operation.number, word) if word else None for word in words]
    if known.count(None) != words.count(0):
        return None
    returned, wait_entered, wait_returned, started, completed, failure = known  # as in `layout.Word`
    entered_ns = operation.entered_ns
    # That a wait has given up is taken back when the next one begins.
    still_waits = None if wait_entered else operation.wait_returned_ns
    # Field by field: `dataclasses.replace` took a quarter of the time of a poll.
    return Operation(
        number=operation.number,
        kind=operation.kind,
        entered_ns=entered_ns,
        step=operation.step,
        sequence=operation.sequence,
        message_bytes=operation.message_bytes,
        group=operation.group,
        signature=operation.signature,
        call_site=operation.call_site,
        label=operation.label,
        peer=operation.peer,
        tag=operation.tag,
        thread=operation.thread,
        flags=operation.flags,
        returned_ns=entered_ns + returned[0] if returned else operation.returned_ns,
        wait_entered_ns=entered_ns + wait_entered[0] if wait_entered else operation.wait_entered_ns,
        wait_returned_ns=entered_ns + wait_returned[0] if wait_returned else still_waits,
        started_ns=entered_ns + started[0] if started else operation.started_ns,
        completed_ns=entered_ns + completed[0] if completed else operation.completed_ns,
        how=completed[1] if completed else operation.how,
        failure=failure[0] if failure else operation.failure,
        started_how=started[1] if started else operation.started_how,
    )


def decoded(number: int, record: bytes | None) -> Operation | None:
    """The operation in a record, or None when there is no record or it is none of an operation."""
    if record is None:
        return None
    try:
        return operation_of(number, layout.PAYLOAD.unpack_from(record, layout.PAYLOAD_OFFSET))
    except ValueError:
        return None


def operation_of(number: int, fields: tuple[int, ...]) -> Operation:
    """The operation in a payload's fields.

    Raises:
        ValueError: It is of a kind that this version does not have.
    """
    entered, step, sequence, size, group, signature, call_site, label, peer, tag, thread, kind, flags = fields[:13]
    return Operation(
        number=number,
        kind=RecordKind(kind),
        entered_ns=entered,
        step=step,
        sequence=sequence,
        message_bytes=size,
        group=group,
        signature=signature,
        call_site=call_site,
        label=label,
        peer=peer,
        tag=tag,
        thread=thread,
        flags=Flag(flags),
    )
