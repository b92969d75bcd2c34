"""What an activity's record says about a remote procedure call, besides what every activity's does.

A call is an activity of the caller's thread and another one of the thread that runs the function. Only the latter
names the other: the caller's request carries the nonce of its tape and the number of its record, from which a reader
makes the same span id as the reader of the caller's tape.

In the record, the fields of an operation stand for other things: the sequence for the number of the caller's record,
the bytes for the nonce of its tape, the group for the other worker's name, the peer for its id, the tag for the
caller's step, and the flags for the mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from otel_torchdist.model.kinds import ActivityKind, CallMode, RecordKind
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.tape import layout, seals
from otel_torchdist.tape.layout import Word

_MAX_STEP: Final = layout.MAX_COUNT


def prepare_call(kind: ActivityKind, function: int, thread: int, call: RemoteCall) -> bytes:
    """Pack one side of a call for `TapeWriter.begin_prepared`; its sequence is `caller_number`.

    Args:
        kind: Which side.
        function: Name id of the function.
        thread: Native id of the thread.
        call: The rest.

    Raises:
        struct.error: A value does not fit its field.
    """
    return layout.PAYLOAD_TAIL.pack(
        call.caller_nonce,
        call.worker_name,
        kind,
        call.call_site,
        function,
        call.worker,
        min(call.caller_step, _MAX_STEP),
        thread,
        RecordKind.ACTIVITY,
        call.mode,
        0,
        0,
    )


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
