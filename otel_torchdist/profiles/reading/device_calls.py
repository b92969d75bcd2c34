"""Calls of NCCL and its kin: a call is a `record_param_comms`, and the kernels that it has launched belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.model.collectives import MESSAGES, ROOTED
from otel_torchdist.naming import readable
from otel_torchdist.profiles.names import averages, dtype_of, operation_name, operation_of_kernel
from otel_torchdist.profiles.profile import NO_RANK, CallArguments, ProfiledCall, ProfiledGroup
from otel_torchdist.profiles.reading.events import Arguments, TraceEvent, TraceEvents
from otel_torchdist.profiles.reading.groups import MAX_NAME, described
from otel_torchdist.profiles.reading.lists import is_uneven, split_parts
from otel_torchdist.profiles.reading.moments import StepMoments
from otel_torchdist.profiles.reading.shapes import shapes_at

MAX_ELEMENTS: Final = 1 << 48
_KERNELS_OF_ONE: Final = "init"
"""Creates a communicator; it describes a group, and calls nothing."""


@dataclass(slots=True)
class _Record:
    """A recorded call, with the ids of whatever was recorded within it."""

    event: TraceEvent
    ids: list[int] = field(default_factory=list[int])


def device_calls(events: TraceEvents, moments: StepMoments) -> Iterator[ProfiledCall]:
    """Yield the calls of a trace, each once."""
    kernels: dict[int, list[TraceEvent]] = {}
    for kernel in events.kernels:
        kernels.setdefault(kernel.arguments.external_id, []).append(kernel)
    nameless = kernels.pop(0, [])
    is_described = False
    for record in _outermost(events.records):
        launched = [kernel for one in record.ids if one for kernel in kernels.pop(one, ())]
        is_described = True
        yield _call(record.event, launched, moments)
    # Graphs of CUDA launch kernels again without a call; they may carry what the call was.
    left = [*kernels.values(), *([one] for one in nameless)]
    for launched in left:
        if launched[0].arguments.collective is not None:
            is_described = True
            yield _call(launched[0], launched, moments, has_call=False)
    if not is_described:
        yield from _from_names((one for launched in left for one in launched), moments)


def groups_beside(events: TraceEvents) -> Iterator[ProfiledGroup]:
    """Yield the groups that are described beside calls and kernels."""
    known: set[tuple[object, ...]] = set()
    for event in (*events.records, *events.kernels):
        found = event.arguments
        # A wait is recorded with a group of one rank, whatever its group is.
        if found.group is None or found.collective is None or _is_wait(found.collective):
            continue
        ranks = str(found.ranks)
        key = (found.group, found.group_size, ranks, found.start, found.stride)
        if key not in known:
            known.add(key)
            yield described(found.group, found.description, found.group_size, ranks, found.start, found.stride)


def _is_wait(collective: str) -> bool:
    return not operation_name(collective) and collective != _KERNELS_OF_ONE


def _outermost(events: Iterable[TraceEvent]) -> Iterator[_Record]:
    """Join what is recorded within a call with it: a barrier is also recorded as the all_reduce that it is made of."""
    calls = [one for one in events if operation_name(one.arguments.collective or "unknown")]
    calls.sort(key=lambda one: (one.thread, one.begun_ns, -one.ended_ns))
    found: list[_Record] = []
    for event in calls:
        last = found[-1] if found else None
        if last is not None and last.event.thread == event.thread and event.ended_ns <= last.event.ended_ns:
            last.ids.append(event.arguments.external_id)
        else:
            found.append(_Record(event, [event.arguments.external_id]))
    found.sort(key=lambda one: one.event.begun_ns)
    yield from found


def _call(event: TraceEvent, launched: list[TraceEvent], moments: StepMoments, has_call: bool = True) -> ProfiledCall:
    found = event.arguments
    arguments = _arguments(found, launched)
    # Each rank numbers its own messages.
    is_shared = arguments.operation not in MESSAGES and 0 < found.sequence < 1 << 62
    return ProfiledCall(
        arguments=arguments,
        entered_ns=event.begun_ns,
        returned_ns=event.ended_ns if has_call else event.begun_ns,
        started_ns=min((kernel.begun_ns for kernel in launched), default=None),
        ended_ns=max((kernel.ended_ns for kernel in launched), default=None),
        step=moments.step_at(event.begun_ns),
        thread=event.thread if has_call else 0,
        sequence=found.sequence if is_shared else 0,
        in_backward=moments.in_backward(event.thread, event.begun_ns) if has_call else None,
    )


def _arguments(found: Arguments, launched: list[TraceEvent]) -> CallArguments:
    operation = operation_name(found.collective or "unknown")
    elements = found.elements if found.elements is not None and 0 <= found.elements <= MAX_ELEMENTS else None
    received = found.received if found.received is not None and 0 <= found.received <= MAX_ELEMENTS else None
    parts = split_parts(operation, str(found.sent_parts), found.group_size)
    is_message = operation in MESSAGES
    has_peer = is_message or operation in ROOTED
    return CallArguments(
        operation=readable(operation, MAX_NAME),
        group=readable(found.group, MAX_NAME) if found.group is not None else None,
        group_size=found.group_size,
        reduce_op="avg" if any(averages(kernel.name) for kernel in launched) else "",
        dtype=readable(dtype_of(found.dtype), MAX_NAME),
        elements=elements,
        received=received,
        splits=parts,
        is_uneven=is_uneven(operation, elements, received, str(found.sent_parts), str(found.received_parts)),
        shapes=shapes_at(found.dims, 0, elements),
        peer=found.rank if has_peer and 0 <= found.rank < 1 << 20 else NO_RANK,
        global_peer=max(found.source, found.destination) if is_message else NO_RANK,
    )


def _from_names(kernels: Iterable[TraceEvent], moments: StepMoments) -> Iterator[ProfiledCall]:
    """Calls of which nothing but the kernel was recorded, as before 2023 and without the profiler's CPU activities."""
    for kernel in sorted(kernels, key=lambda one: one.begun_ns):
        operation = operation_of_kernel(kernel.name)
        if operation:
            yield ProfiledCall(
                arguments=CallArguments(operation, None),
                entered_ns=kernel.begun_ns,
                returned_ns=kernel.begun_ns,
                started_ns=kernel.begun_ns,
                ended_ns=kernel.ended_ns,
                step=moments.step_at(kernel.begun_ns),
            )
