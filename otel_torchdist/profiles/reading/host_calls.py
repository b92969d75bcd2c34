"""Calls of gloo and other backends that record no arguments: operators of torch, and when gloo's threads ran them.

To which group such a call belongs is not in the trace.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from otel_torchdist.model.collectives import operations_where
from otel_torchdist.profiles.names import operator_name
from otel_torchdist.profiles.profile import NO_RANK, CallArguments, ProfiledCall
from otel_torchdist.profiles.reading.events import TraceEvent, TraceEvents
from otel_torchdist.profiles.reading.moments import StepMoments
from otel_torchdist.profiles.reading.shapes import dtype_at, shapes_at

INPUT_IS_SECOND: Final = operations_where(lambda row: not row.family.is_in_place)
"""Operators whose first argument is the output."""
_PEERS: Final = {"send": 2, "recv": 2}
"""Where an operator has the rank of its peer."""


def host_calls(events: TraceEvents, moments: StepMoments) -> Iterator[ProfiledCall]:
    """Yield the calls of a trace without `record_param_comms`."""
    operators = [event for event in events.operators if operator_name(event.name)]
    operators.sort(key=lambda event: event.begun_ns)
    slices = _slices_of(operators, events.slices)
    for event in operators:
        ran = slices.get(event.arguments.record)
        yield ProfiledCall(
            arguments=_arguments(event, ran),
            entered_ns=event.begun_ns,
            returned_ns=event.ended_ns,
            started_ns=ran.begun_ns if ran is not None else None,
            ended_ns=ran.ended_ns if ran is not None else None,
            step=moments.step_at(event.begun_ns),
            thread=event.thread,
            in_backward=moments.in_backward(event.thread, event.begun_ns),
        )


def _slices_of(operators: Iterable[TraceEvent], slices: Iterable[TraceEvent]) -> dict[int, TraceEvent]:
    """By the id of an operator, when it ran: its slice gets its own id while the operator is being called."""
    by_id = sorted(slices, key=lambda event: event.arguments.record)
    ids = [event.arguments.record for event in by_id]
    found: dict[int, TraceEvent] = {}
    own = sorted(event.arguments.record for event in operators)
    for nth, record in enumerate(own):
        place = bisect_left(ids, record)
        following = own[nth + 1] if nth + 1 < len(own) else 1 << 62
        if place < len(ids) and ids[place] < following:
            found[record] = by_id[place]
    return found


def _arguments(event: TraceEvent, ran: TraceEvent | None) -> CallArguments:
    operation = operator_name(event.name)
    recorded = event.arguments
    place = int(operation in INPUT_IS_SECOND)
    shapes = shapes_at(recorded.dims, place)
    dtype = dtype_at(recorded.types, place) or (dtype_at(ran.arguments.types, 0) if ran is not None else "")
    return CallArguments(
        operation=operation,
        group=None,
        dtype=dtype,
        shapes=shapes,
        peer=_number(recorded.concrete, _PEERS.get(operation)),
        on_device=False,
    )


def _number(values: Any, place: int | None) -> int:
    """The number at a place of an operator's arguments; -1 if there is none, or it was not recorded."""
    if place is None or not isinstance(values, list) or place >= len(cast(list[Any], values)):
        return NO_RANK
    found = cast(list[Any], values)[place]
    return int(found) if isinstance(found, str) and found.isdecimal() and len(found) < 8 else NO_RANK
