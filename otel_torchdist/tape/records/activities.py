"""Activities: intervals of one thread that are no operations, such as the step of an optimizer.

No record becomes both this and an `Operation`: a rank waits for others in operations alone. The judge sees one thing of
activities: in which checkpoint a rank is (`CheckpointView`).

The record is that of an operation with most fields left at 0. `TapeWriter.begin_prepared` publishes it as entered and
`complete` ends it, so an open one survives the ring and its process as an open operation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from otel_torchdist.model.activity_kinds import SIDES
from otel_torchdist.model.history import Activity, Interval
from otel_torchdist.model.kinds import ActivityKind, CallMode, RecordKind
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.layout import ActivityWord, Word, check_position, clipped
from otel_torchdist.tape.records.operations import operation_of, renewed

# A remote procedure call is an activity of the caller's thread and another one of the thread that runs the function.
# Only the latter names the other: the caller's request carries the nonce of its tape and the number of its record,
# from which a reader makes the same span id as the reader of the caller's tape.
#
# In the record, the fields of an operation stand for other things: the sequence for the number of the caller's
# record, the bytes for the nonce of its tape, the group for the other worker's name, the peer for its id, the tag for
# the caller's step, and the flags for the mode.


def call_of(fields: Sequence[int]) -> RemoteCall:
    """Build it from a payload's fields.

    Raises:
        ValueError: The mode is unknown to this version.
    """
    _, _, number, nonce, worker_name, _, call_site, _, worker, step, _, _, mode = fields[:13]
    known = CallMode(mode)
    return RemoteCall(worker, worker_name, call_site, known, nonce, number, step, None, known is CallMode.SYNC)


def renewed_call(call: RemoteCall | None, number: int, entered_ns: int, words: Sequence[int]) -> RemoteCall | None:
    """Return it updated from its record's words."""
    if call is None or not (words[Word.RETURNED] or words[Word.WAIT_ENTERED]):
        return call
    returned = seals.unseal(number, words[Word.RETURNED])
    return msgspec.structs.replace(
        call,
        returned_ns=None if returned is None else entered_ns + returned[0],
        is_waited_for=call.is_waited_for or seals.unseal(number, words[Word.WAIT_ENTERED]) is not None,
    )


_KIND: Final = 11
"""Position of the record's kind among a payload's fields."""
_ACTIVITY: Final = int(RecordKind.ACTIVITY)


def activity_of(number: int, fields: tuple[int, ...]) -> Activity:
    """Build the activity from a payload's fields.

    Raises:
        ValueError: What the thread is busy with is unknown to this version, or it is at an impossible time or position.
    """
    entered, step, parent, message_bytes, _, kind, _, detail, _, _, thread = fields[:11]
    known = ActivityKind(kind)
    check_position(number, entered, step, parent)
    if known in SIDES:
        return Activity(number, known, entered, step, detail, thread, call=call_of(fields))
    return Activity(number, known, entered, step, detail, thread, parent=parent, message_bytes=clipped(message_bytes))


def renewed_activity(activity: Activity, words: Sequence[int]) -> Activity | None:
    """Return the activity updated from its words; None when one of its end is damaged, so that it is unknown."""
    completed, failure = (seals.unseal(activity.number, words[which]) for which in (Word.COMPLETED, Word.FAILURE))
    if (completed is None and words[Word.COMPLETED]) or (failure is None and words[Word.FAILURE]):
        return None
    if activity.call is not None:
        call = renewed_call(activity.call, activity.number, activity.entered_ns, words)
        known = activity if call is activity.call else msgspec.structs.replace(activity, call=call)
    else:
        known = _with_facts(activity, words) if any(words[: len(ActivityWord)]) else activity
    if completed is None:
        return known
    elapsed_ns, how = completed
    return msgspec.structs.replace(
        known, completed_ns=activity.entered_ns + elapsed_ns, how=how, failure=failure[0] if failure else 0
    )


def _with_facts(activity: Activity, words: Sequence[int]) -> Activity:
    """Return the activity with what its other words say; the same object if they say nothing new."""
    found = [seals.unseal(activity.number, words[which]) for which in ActivityWord]
    size, files, storage, explanation = (None if one is None else one[0] for one in found)
    known = msgspec.structs.replace(
        activity,
        message_bytes=activity.message_bytes if size is None else size,
        files=files or 0,
        storage=storage or 0,
        explanation=explanation or 0,
    )
    return activity if known == activity else known


def interval_of(number: int, fields: tuple[int, ...]) -> Interval:
    """Build the operation or activity from a payload's fields.

    Raises:
        ValueError: It is neither, or of a kind unknown to this version.
    """
    return activity_of(number, fields) if fields[_KIND] == _ACTIVITY else operation_of(number, fields)


def decoded(number: int, record: bytes | None) -> Interval | None:
    """Return the operation or activity in a record; None when there is no record or it holds neither."""
    if record is None:
        return None
    try:
        return interval_of(number, layout.PAYLOAD.unpack_from(record, layout.PAYLOAD_OFFSET))
    except ValueError:
        return None


def renewed_interval(interval: Interval, words: Sequence[int]) -> Interval | None:
    """Return it updated from its words; None when a word is damaged, so that its end is unknown."""
    return renewed_activity(interval, words) if isinstance(interval, Activity) else renewed(interval, words)
