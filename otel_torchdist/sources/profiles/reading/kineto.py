"""Decodes a PyTorch profiler trace, in Kineto's format."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from otel_torchdist.model.collectives import MESSAGES, ROOTED, operations_where
from otel_torchdist.model.text import readable
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
from otel_torchdist.sources.profiles.reading.events import Arguments, TimeIndex, TraceEvent, TraceEvents, events_of
from otel_torchdist.sources.profiles.reading.groups import (
    MAX_NAME,
    configured_groups,
    distributed_info,
    group_from_arguments,
)
from otel_torchdist.sources.profiles.reading.lists import dtype_at, is_uneven, shapes_at, split_parts
from otel_torchdist.tape.layout import MAX_TIME_NS

MAX_ELEMENTS: Final = 1 << 48
_CREATION: Final = "init"
"""Record of a communicator's creation. It describes a group, but is not a call."""


@dataclass(slots=True)
class _Record:
    """A recorded call, with the external ids of all records within it."""

    event: TraceEvent
    ids: list[int] = field(default_factory=list[int])


def device_calls(events: TraceEvents, time_index: TimeIndex) -> Iterator[ProfiledCall]:
    """Yield the calls of a trace, without duplicates."""
    kernels: dict[int, list[TraceEvent]] = {}
    for kernel in events.kernels:
        kernels.setdefault(kernel.arguments.external_id, []).append(kernel)
    unlinked = kernels.pop(0, [])
    has_arguments = False
    for record in _outermost(events.records):
        launched = [kernel for external_id in record.ids if external_id for kernel in kernels.pop(external_id, ())]
        has_arguments = True
        yield _call(record.event, launched, time_index)
    # CUDA graphs launch kernels again without a call. These kernels may carry the arguments of the captured call.
    remaining = [*kernels.values(), *([kernel] for kernel in unlinked)]
    for launched in remaining:
        if launched[0].arguments.collective is not None:
            has_arguments = True
            yield _call(launched[0], launched, time_index, has_call=False)
    if not has_arguments:
        yield from _calls_from_kernel_names((kernel for launched in remaining for kernel in launched), time_index)


def groups_in_arguments(events: TraceEvents) -> Iterator[ProfiledGroup]:
    """Yield the groups described in the arguments of calls and kernels."""
    seen: set[tuple[object, ...]] = set()
    for event in (*events.records, *events.kernels):
        recorded = event.arguments
        # The record of a wait always has a group of one rank.
        if recorded.group is None or recorded.collective is None or _is_wait(recorded.collective):
            continue
        ranks = str(recorded.ranks)
        key = (recorded.group, recorded.group_size, ranks, recorded.start, recorded.stride)
        if key not in seen:
            seen.add(key)
            yield group_from_arguments(
                recorded.group, recorded.description, recorded.group_size, ranks, recorded.start, recorded.stride
            )


def _is_wait(collective: str) -> bool:
    return not operation_name(collective) and collective != _CREATION


def _outermost(events: Iterable[TraceEvent]) -> Iterator[_Record]:
    """Join nested records into the outermost call: a barrier also records the all_reduce that implements it."""
    calls = [event for event in events if operation_name(event.arguments.collective or "unknown")]
    calls.sort(key=lambda event: (event.thread, event.begun_ns, -event.ended_ns))
    records: list[_Record] = []
    for event in calls:
        last = records[-1] if records else None
        if last is not None and last.event.thread == event.thread and event.ended_ns <= last.event.ended_ns:
            last.ids.append(event.arguments.external_id)
        else:
            records.append(_Record(event, [event.arguments.external_id]))
    records.sort(key=lambda record: record.event.begun_ns)
    yield from records


def _call(event: TraceEvent, launched: list[TraceEvent], time_index: TimeIndex, has_call: bool = True) -> ProfiledCall:
    recorded = event.arguments
    arguments = _device_arguments(recorded, launched)
    # Numbers of messages are not comparable: each rank counts its own.
    is_comparable = arguments.operation not in MESSAGES and 0 < recorded.sequence < 1 << 62
    return ProfiledCall(
        arguments=arguments,
        entered_ns=event.begun_ns,
        returned_ns=event.ended_ns if has_call else event.begun_ns,
        started_ns=min((kernel.begun_ns for kernel in launched), default=None),
        ended_ns=max((kernel.ended_ns for kernel in launched), default=None),
        step=time_index.step_at(event.begun_ns),
        thread=event.thread if has_call else 0,
        sequence=recorded.sequence if is_comparable else 0,
        in_backward=time_index.in_backward(event.thread, event.begun_ns) if has_call else None,
    )


def _device_arguments(recorded: Arguments, launched: list[TraceEvent]) -> CallArguments:
    operation = operation_name(recorded.collective or "unknown")
    elements, received = _plausible(recorded.elements), _plausible(recorded.received)
    parts = split_parts(operation, str(recorded.sent_parts), recorded.group_size)
    is_message = operation in MESSAGES
    has_peer = is_message or operation in ROOTED
    return CallArguments(
        operation=readable(operation, MAX_NAME),
        group=readable(recorded.group, MAX_NAME) if recorded.group is not None else None,
        group_size=recorded.group_size,
        reduce_op="avg" if any(averages(kernel.name) for kernel in launched) else "",
        dtype=readable(dtype_of(recorded.dtype), MAX_NAME),
        elements=elements,
        received=received,
        splits=parts,
        is_uneven=is_uneven(operation, elements, received, str(recorded.sent_parts), str(recorded.received_parts)),
        shapes=shapes_at(recorded.dims, 0, elements),
        peer=recorded.rank if has_peer and 0 <= recorded.rank < 1 << 20 else NO_RANK,
        global_peer=max(recorded.source, recorded.destination) if is_message else NO_RANK,
    )


def _plausible(elements: int | None) -> int | None:
    return elements if elements is not None and 0 <= elements <= MAX_ELEMENTS else None


def _calls_from_kernel_names(kernels: Iterable[TraceEvent], time_index: TimeIndex) -> Iterator[ProfiledCall]:
    """Yield calls from kernels alone, for traces before 2023 or without the profiler's CPU activities."""
    for kernel in sorted(kernels, key=lambda kernel: kernel.begun_ns):
        operation = operation_of_kernel(kernel.name)
        if operation:
            yield ProfiledCall(
                arguments=CallArguments(operation, None),
                entered_ns=kernel.begun_ns,
                returned_ns=kernel.begun_ns,
                started_ns=kernel.begun_ns,
                ended_ns=kernel.ended_ns,
                step=time_index.step_at(kernel.begun_ns),
            )


INPUT_IS_SECOND: Final = operations_where(lambda row: not row.family.is_in_place)
"""Operations whose operator takes the output first, and the input second."""
_PEERS: Final = {"send": 2, "recv": 2}
"""Index of an operator's argument with the rank of its peer."""


def host_calls(events: TraceEvents, time_index: TimeIndex) -> Iterator[ProfiledCall]:
    """Yield the calls of a trace without `record_param_comms`."""
    operators = [event for event in events.operators if operator_name(event.name)]
    operators.sort(key=lambda event: event.begun_ns)
    slices = _slices_of(operators, events.slices)
    for event in operators:
        execution = slices.get(event.arguments.record)
        yield ProfiledCall(
            arguments=_host_arguments(event, execution),
            entered_ns=event.begun_ns,
            returned_ns=event.ended_ns,
            started_ns=execution.begun_ns if execution is not None else None,
            ended_ns=execution.ended_ns if execution is not None else None,
            step=time_index.step_at(event.begun_ns),
            thread=event.thread,
            in_backward=time_index.in_backward(event.thread, event.begun_ns),
        )


def _slices_of(operators: Iterable[TraceEvent], slices: Iterable[TraceEvent]) -> dict[int, TraceEvent]:
    """Return the slice of each operator, by the operator's id.

    A slice gets its id during the call of the operator, so it lies between this operator's id and the next one's.
    """
    by_id = sorted(slices, key=lambda event: event.arguments.record)
    slice_ids = [event.arguments.record for event in by_id]
    matched: dict[int, TraceEvent] = {}
    operator_ids = sorted(event.arguments.record for event in operators)
    for nth, operator_id in enumerate(operator_ids):
        index = bisect_left(slice_ids, operator_id)
        following = operator_ids[nth + 1] if nth + 1 < len(operator_ids) else 1 << 62
        if index < len(slice_ids) and slice_ids[index] < following:
            matched[operator_id] = by_id[index]
    return matched


def _host_arguments(event: TraceEvent, execution: TraceEvent | None) -> CallArguments:
    operation = operator_name(event.name)
    recorded = event.arguments
    index = int(operation in INPUT_IS_SECOND)
    shapes = shapes_at(recorded.dims, index)
    dtype = dtype_at(recorded.types, index) or (dtype_at(execution.arguments.types, 0) if execution is not None else "")
    return CallArguments(
        operation=operation,
        group=None,
        dtype=dtype,
        shapes=shapes,
        peer=_number(recorded.concrete, _PEERS.get(operation)),
        on_device=False,
    )


def _number(values: Any, index: int | None) -> int:
    """Return the number in an operator's argument; -1 if it is not a number, or not recorded."""
    if index is None or not isinstance(values, list) or index >= len(cast(list[Any], values)):
        return NO_RANK
    value = cast(list[Any], values)[index]
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 8 else NO_RANK


_DEFAULT_NAME: Final = re.compile(r"(.{1,128})_(\d{1,10})\.\d{1,20}\.pt\.trace\.json(?:\.gz)?")
"""Default file name of `tensorboard_trace_handler`: host and process id."""
_NO_HOST: Final = ("localhost", "")


def decode_profile(document: TraceDocument, name: str, path: str, rank: int | None) -> DecodedTrace:
    """Decode a trace.

    Args:
        document: The parts of the trace.
        name: The last component of the path.
        path: Path of the file, for reports.
        rank: The rank in the name; None without one.

    Raises:
        TraceError: The trace is of another tool, or its rank is unknown.
    """
    base_ns = decoded(document.baseTimeNanoseconds, int, 0)
    events = events_of(items_of(document.traceEvents), base_ns if 0 <= base_ns <= MAX_TIME_NS else 0)
    info = distributed_info(document.distributedInfo)
    is_of_torch = document.schemaVersion is not ABSENT or document.deviceProperties is not ABSENT
    if not is_of_torch and document.distributedInfo is ABSENT and not (events.records or events.operators):
        raise TraceError("it is not a trace of PyTorch's profiler")
    if info.rank >= 0:
        rank = info.rank
    if rank is None:
        raise TraceError("neither its name nor its `distributedInfo` states a rank")
    time_index = TimeIndex(events)
    calls = sorted(device_calls(events, time_index), key=lambda call: call.entered_ns)
    calls = calls or list(host_calls(events, time_index))
    groups = {group: None for group in (*configured_groups(info.pg_config), *groups_in_arguments(events))}
    newest_ns = max([*(call.returned_ns for call in calls), *(step.ended_ns for step in time_index.steps)], default=0)
    profile = RankProfile(
        kind=TraceKind.PROFILER,
        rank=rank,
        path=path,
        world_size=info.world_size,
        host=_host_of(document, name, events),
        process=events.process,
        newest_ns=newest_ns,
        groups=tuple(groups),
        steps=time_index.steps,
        calls=tuple(calls),
    )
    return DecodedTrace(profile, events.bad_parts, events.first_fault)


def _host_of(document: TraceDocument, name: str, events: TraceEvents) -> str:
    """Return the host, from the trace (2025 and later), or from a default file name with the trace's process id."""
    host = decoded(document.host_name, str, "")
    match = _DEFAULT_NAME.fullmatch(name)
    if not host and match is not None and int(match[2]) == events.process:
        host = match[1]
    return "" if host in _NO_HOST else readable(host, MAX_NAME)
