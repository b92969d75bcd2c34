"""Turns one side of a remote procedure call into a finished span.

Both sides know the step of the first caller, whose trace it is, and the other side's record, which is the parent: no
reader has to wait for another. So the span of a function may be sent before that of its call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from otel_torchdist import semconv
from otel_torchdist.model.activities import Activity
from otel_torchdist.model.activity_kinds import SIDES
from otel_torchdist.model.incident import LinkTarget
from otel_torchdist.model.kinds import CallMode
from otel_torchdist.model.remote_calls import RemoteCall, Side
from otel_torchdist.naming import activity_span_id, anchor_span_id, trace_id_of_step
from otel_torchdist.tape.names.reader import NamesReader

SYSTEM: Final = "torch"


def kind_of(activity: Activity) -> SpanKind:
    """The kind of an activity's span."""
    match SIDES.get(activity.kind) if activity.call is not None else None:
        case None:
            return SpanKind.INTERNAL
        case Side.CALLER:
            return SpanKind.CLIENT
        case Side.CALLEE:
            return SpanKind.SERVER


def parent_of(
    activity: Activity, call: RemoteCall, nonce: int, run_id: int, run_of: Callable[[int], int | None]
) -> LinkTarget | None:
    """The parent of a call's span; None if it is under the anchor of its segment, like other activities.

    Args:
        activity: The activity.
        call: The call.
        nonce: Nonce of its tape.
        run_id: Its run.
        run_of: Returns the run of the tape with a nonce, if that is known here. Workers in no group are a run of their
            own, and their callers may be in another one.
    """
    is_caller = SIDES.get(activity.kind) is Side.CALLER
    if is_caller and call.caller_number:
        return LinkTarget(trace_id_of_step(run_id, call.caller_step), activity_span_id(nonce, call.caller_number))
    if is_caller:  # it may have ended in a later step
        return LinkTarget(trace_id_of_step(run_id, activity.step), anchor_span_id(nonce, activity.step, 0))
    if not call.caller_nonce:
        return None
    run = run_of(call.caller_nonce) or run_id
    parent = activity_span_id(call.caller_nonce, call.caller_number)
    return LinkTarget(trace_id_of_step(run, call.caller_step), parent)


def attributes_of(call: RemoteCall, names: NamesReader) -> dict[str, AttributeValue]:
    """What only spans of calls have, besides the method."""
    attributes: dict[str, AttributeValue] = {semconv.RPC_SYSTEM: SYSTEM}
    peer = names.text(call.worker_name)
    if peer:
        attributes[semconv.RPC_PEER] = peer
    if call.mode is not CallMode.UNKNOWN:
        attributes[semconv.RPC_MODE] = call.mode.name.lower()
    site = names.call_site(call.call_site)
    if site is not None:
        attributes[semconv.CODE_FUNCTION] = site.function
        attributes[semconv.CODE_FILE] = site.file
        attributes[semconv.CODE_LINE] = site.line
    return attributes
