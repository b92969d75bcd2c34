"""Decodes a trace of PyTorch's profiler, in Kineto's format."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from otel_torchdist.model.collectives import MESSAGES, ROOTED, operations_where
from otel_torchdist.model.naming import readable
from otel_torchdist.sources.profiles.names import averages, dtype_of, operation_name, operation_of_kernel, operator_name
from otel_torchdist.sources.profiles.profile import (
    NO_RANK,
    CallArguments,
    DecodedTrace,
    ProfiledCall,
    ProfiledGroup,
    RankProfile,
    TraceKind,
)
from otel_torchdist.sources.profiles.reading.document import ABSENT, TraceDocument, TraceError, decoded, items_of
from otel_torchdist.sources.profiles.reading.events import Arguments, StepMoments, TraceEvent, TraceEvents, events_of
from otel_torchdist.sources.profiles.reading.groups import MAX_NAME, configured_groups, described, distributed_info
from otel_torchdist.sources.profiles.reading.lists import dtype_at, is_uneven, shapes_at, split_parts
from otel_torchdist.tape.layout import MAX_TIME_NS

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
    arguments = _device_arguments(found, launched)
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


def _device_arguments(found: Arguments, launched: list[TraceEvent]) -> CallArguments:
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
            arguments=_host_arguments(event, ran),
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


def _host_arguments(event: TraceEvent, ran: TraceEvent | None) -> CallArguments:
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


_DEFAULT_NAME: Final = re.compile(r"(.{1,128})_(\d{1,10})\.\d{1,20}\.pt\.trace\.json(?:\.gz)?")
"""What `tensorboard_trace_handler` calls a file unless it is given a name: host and process."""
_NO_HOST: Final = ("localhost", "")


def decode_profile(document: TraceDocument, name: str, path: str, rank: int | None) -> DecodedTrace:
    """Decode a trace.

    Args:
        document: Its parts.
        name: The file's own name.
        path: Where it was read, for reports.
        rank: The rank that the name states; None if it states none.

    Raises:
        TraceError: It does not show of which rank it is.
    """
    base_ns = decoded(document.baseTimeNanoseconds, int, 0)
    events = events_of(items_of(document.traceEvents), base_ns if 0 <= base_ns <= MAX_TIME_NS else 0)
    info = distributed_info(document.distributedInfo)
    is_of_torch = document.schemaVersion is not ABSENT or document.deviceProperties is not ABSENT
    if not is_of_torch and document.distributedInfo is ABSENT and not (events.records or events.operators):
        raise TraceError("it is a trace that PyTorch's profiler has not written")
    own = info.rank if info.rank >= 0 else rank
    if own is None:
        raise TraceError("neither its name nor its `distributedInfo` states a rank")
    moments = StepMoments(events)
    calls = sorted(device_calls(events, moments), key=lambda call: call.entered_ns)
    calls = calls or list(host_calls(events, moments))
    groups = {group: None for group in (*configured_groups(info.pg_config), *groups_beside(events))}
    newest_ns = max([*(call.returned_ns for call in calls), *(step.ended_ns for step in moments.steps)], default=0)
    profile = RankProfile(
        kind=TraceKind.PROFILER,
        rank=own,
        path=path,
        world_size=info.world_size,
        host=_host_of(document, name, events),
        process=events.process,
        newest_ns=newest_ns,
        groups=tuple(groups),
        steps=moments.steps,
        calls=tuple(calls),
    )
    return DecodedTrace(profile, events.bad, events.first_fault)


def _host_of(document: TraceDocument, name: str, events: TraceEvents) -> str:
    """The host, from the trace (2025 and later), or from a name that states the process of the trace as well."""
    host = decoded(document.host_name, str, "")
    found = _DEFAULT_NAME.fullmatch(name)
    if not host and found is not None and int(found[2]) == events.process:
        host = found[1]
    return "" if host in _NO_HOST else readable(host, MAX_NAME)
