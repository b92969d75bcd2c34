"""Activities: timed intervals that are not collectives, such as optimizer steps, data waits and checkpoint stages.

A rank waits for other ranks only in operations, so activities are not operations. The judge uses activities only to
tell which checkpoint a rank is in (`CheckpointView`).

An activity has the record of an operation, with most fields 0. `TapeWriter.begin_prepared` publishes it and `complete`
ends it, so an open activity survives the reuse of its slot and the end of its process, as an open operation does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from otel_torchdist.model.activity_kinds import CALL_SIDES
from otel_torchdist.model.history import Activity, Interval
from otel_torchdist.model.kinds import ActivityKind, CallMode, RecordKind
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.layout import ActivityWord, Word, check_position, clipped
from otel_torchdist.tape.records.operations import operation_of, updated_operation

# A remote procedure call is an activity of the caller's thread, and a second activity of the thread that runs the
# function. Only the second refers to the first: the caller's request contains the nonce of its tape and the number of
# its record, from which a reader derives the same span id as the reader of the caller's tape.
#
# The record reuses the fields of an operation: the sequence is the number of the caller's record, the bytes are the
# nonce of its tape, the group is the other worker's name, the peer its id, the tag the caller's step, and the flags
# are the mode.


def call_of(fields: Sequence[int]) -> RemoteCall:
    """Build a remote call from a payload's fields.

    Raises:
        ValueError: The mode is unknown to this version.
    """
    _, _, number, nonce, worker_name, _, call_site, _, worker, step, _, _, mode_code = fields[:13]
    mode = CallMode(mode_code)
    return RemoteCall(worker, worker_name, call_site, mode, nonce, number, step, None, mode is CallMode.SYNC)


def updated_call(call: RemoteCall | None, number: int, entered_ns: int, words: Sequence[int]) -> RemoteCall | None:
    """Return the remote call updated from its record's words."""
    if call is None or not (words[Word.RETURNED] or words[Word.WAIT_ENTERED]):
        return call
    returned = seals.unseal(number, words[Word.RETURNED])
    return msgspec.structs.replace(
        call,
        returned_ns=None if returned is None else entered_ns + returned[0],
        is_waited_for=call.is_waited_for or seals.unseal(number, words[Word.WAIT_ENTERED]) is not None,
    )


_KIND: Final = 11
"""Index of the record's kind in a payload's fields."""
_ACTIVITY: Final = int(RecordKind.ACTIVITY)


def activity_of(number: int, fields: tuple[int, ...]) -> Activity:
    """Build the activity from a payload's fields.

    Raises:
        ValueError: The kind of activity is unknown to this version, or the time or position is impossible.
    """
    entered, step, parent, message_bytes, _, kind_code, _, detail, _, _, thread = fields[:11]
    kind = ActivityKind(kind_code)
    check_position(number, entered, step, parent)
    if kind in CALL_SIDES:
        return Activity(number, kind, entered, step, detail, thread, call=call_of(fields))
    return Activity(number, kind, entered, step, detail, thread, parent=parent, message_bytes=clipped(message_bytes))


def updated_activity(activity: Activity, words: Sequence[int]) -> Activity | None:
    """Return the activity updated from its words; None if a word of its end is damaged."""
    completed, failure = (seals.unseal(activity.number, words[which]) for which in (Word.COMPLETED, Word.FAILURE))
    if (completed is None and words[Word.COMPLETED]) or (failure is None and words[Word.FAILURE]):
        return None
    if activity.call is not None:
        call = updated_call(activity.call, activity.number, activity.entered_ns, words)
        current = activity if call is activity.call else msgspec.structs.replace(activity, call=call)
    else:
        current = _with_activity_words(activity, words) if any(words[: len(ActivityWord)]) else activity
    if completed is None:
        return current
    elapsed_ns, how = completed
    return msgspec.structs.replace(
        current, completed_ns=activity.entered_ns + elapsed_ns, how=how, failure=failure[0] if failure else 0
    )


def _with_activity_words(activity: Activity, words: Sequence[int]) -> Activity:
    """Return the activity with the values of its `ActivityWord`s; the same object if no value is new."""
    unsealed = [seals.unseal(activity.number, words[which]) for which in ActivityWord]
    size, files, storage, explanation = (None if word is None else word[0] for word in unsealed)
    updated = msgspec.structs.replace(
        activity,
        message_bytes=activity.message_bytes if size is None else size,
        files=files or 0,
        storage=storage or 0,
        explanation=explanation or 0,
    )
    return activity if updated == activity else updated


def interval_of(number: int, fields: tuple[int, ...]) -> Interval:
    """Build the operation or activity from a payload's fields.

    Raises:
        ValueError: The record is neither, or of a kind unknown to this version.
    """
    return activity_of(number, fields) if fields[_KIND] == _ACTIVITY else operation_of(number, fields)


def decoded(number: int, record: bytes | None) -> Interval | None:
    """Return the operation or activity in a record; None for no record, or for a record of another kind."""
    if record is None:
        return None
    try:
        return interval_of(number, layout.PAYLOAD.unpack_from(record, layout.PAYLOAD_OFFSET))
    except ValueError:
        return None


def updated_interval(interval: Interval, words: Sequence[int]) -> Interval | None:
    """Return the operation or activity updated from its words; None if a word is damaged."""
    return updated_activity(interval, words) if isinstance(interval, Activity) else updated_operation(interval, words)
