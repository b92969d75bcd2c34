"""The events of a profiler trace for communication, steps, and backward passes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from otel_torchdist.model.text import readable
from otel_torchdist.sources.profiles.profile import NO_RANK, ProfiledStep
from otel_torchdist.sources.profiles.reading.document import MAX_REASON
from otel_torchdist.tape.layout import MAX_TIME_NS

_STEP: Final = "ProfilerStep#"
_EVALUATION: Final = "autograd::engine::evaluate_function"
_NS: Final = 1_000
"""Nanoseconds per microsecond, the unit of a trace's times."""


class _Head(msgspec.Struct, gc=False):
    name: str = ""
    cat: str = ""
    ph: str = ""


class Arguments(
    msgspec.Struct,
    gc=False,
    rename={
        "external_id": "External id",
        "record": "Record function id",
        "collective": "Collective name",
        "elements": "In msg nelems",
        "received": "Out msg nelems",
        "sent_parts": "In split size",
        "received_parts": "Out split size",
        "group_size": "Group size",
        "group": "Process Group Name",
        "description": "Process Group Description",
        "ranks": "Process Group Ranks",
        "start": "Global rank start",
        "stride": "Global rank stride",
        "sequence": "Seq",
        "rank": "Rank",
        "source": "Src Rank",
        "destination": "Dst Rank",
        "dims": "Input Dims",
        "types": "Input type",
        "concrete": "Concrete Inputs",
    },
):
    """The arguments of an event. `record_param_comms` writes all keys but the first two.

    Attributes:
        rank: Rank of the root or peer within the group; this rank otherwise.
        dims: Shapes of the operator's arguments, in order; None unless the profiler recorded shapes.
        types: Types of the operator's arguments.
        concrete: Numbers among the operator's arguments, as text.
    """

    external_id: int = 0
    record: int = 0
    collective: str | None = None
    elements: int | None = None
    received: int | None = None
    sent_parts: str | list[int] = ""
    received_parts: str | list[int] = ""
    dtype: str = ""
    group_size: int = 0
    group: str | None = None
    description: str = ""
    ranks: str | list[int] = ""
    start: int = NO_RANK
    stride: int = NO_RANK
    sequence: int = 0
    rank: int = NO_RANK
    source: int = NO_RANK
    destination: int = NO_RANK
    dims: Any = None
    types: Any = None
    concrete: Any = None


class _Event(msgspec.Struct, gc=False):
    ts: int | float
    name: str = ""
    dur: int | float = 0
    pid: Any = 0
    tid: Any = 0
    args: Arguments = msgspec.field(default_factory=Arguments)


class TraceEvent(NamedTuple):
    """A decoded event. Times are nanoseconds since the epoch."""

    name: str
    begun_ns: int
    ended_ns: int
    thread: int
    arguments: Arguments


class Interval(NamedTuple):
    """A time interval, in nanoseconds since the epoch."""

    begun_ns: int
    ended_ns: int


_HEADS: Final = msgspec.json.Decoder(_Head)
_EVENTS: Final = msgspec.json.Decoder(_Event, strict=False)


class _Kind(Enum):
    """The kinds of events that are read."""

    RECORD = "a call"
    KERNEL = "a kernel of a communication library"
    OPERATOR = "a call of another backend"
    SLICE = "a run on a thread of gloo"
    STEP = "a step"
    BACKWARD = "a part of a backward pass"
    OPERATION = "an operator other than communication"


@dataclass(slots=True)
class TraceEvents:
    """The events of one trace.

    Attributes:
        records: `record_param_comms` events: a collective, or a wait for a collective.
        kernels: Kernels of a communication library.
        operators: `c10d::…` events, the only events of backends other than NCCL.
        slices: `gloo:…` events: the execution of a collective on gloo's threads.
        steps: Steps, by number.
        backward: Parts of backward passes, by thread.
        step_threads: Threads with the profiler's step events.
        process: Id of the process.
        has_operators: Whether the trace has events of CPU threads, not only of devices.
        bad_parts: Number of events that could not be decoded.
        first_fault: The fault of the first of them; '' without any.
    """

    records: list[TraceEvent] = field(default_factory=list[TraceEvent])
    kernels: list[TraceEvent] = field(default_factory=list[TraceEvent])
    operators: list[TraceEvent] = field(default_factory=list[TraceEvent])
    slices: list[TraceEvent] = field(default_factory=list[TraceEvent])
    steps: dict[int, ProfiledStep] = field(default_factory=dict[int, ProfiledStep])
    backward: dict[int, list[Interval]] = field(default_factory=dict[int, list[Interval]])
    step_threads: set[int] = field(default_factory=set[int])
    process: int = 0
    has_operators: bool = False
    bad_parts: int = 0
    first_fault: str = ""

    def add(self, kind: _Kind, event: TraceEvent) -> None:
        """Add an event of any kind but `OPERATION`."""
        if kind is _Kind.STEP:
            self._add_step(event, event.name.removeprefix(_STEP))
        elif kind is _Kind.BACKWARD:
            self.backward.setdefault(event.thread, []).append(Interval(event.begun_ns, event.ended_ns))
        elif kind is _Kind.RECORD:
            self.records.append(event)
        elif kind is _Kind.KERNEL:
            self.kernels.append(event)
        else:
            (self.operators if kind is _Kind.OPERATOR else self.slices).append(event)

    def _add_step(self, event: TraceEvent, number: str) -> None:
        """Add a step. If several threads record it, it lasts from the first start to the last end."""
        if not number.isdecimal() or len(number) > 9:
            return
        step = int(number)
        known = self.steps.get(step, ProfiledStep(step, event.begun_ns, event.ended_ns))
        begun_ns, ended_ns = min(known.begun_ns, event.begun_ns), max(known.ended_ns, event.ended_ns)
        self.steps[step] = ProfiledStep(step, begun_ns, ended_ns)
        self.step_threads.add(event.thread)

    def note(self, fault: str) -> None:
        """Count an invalid event."""
        self.bad_parts += 1
        self.first_fault = self.first_fault or readable(fault, MAX_REASON)


def events_of(parts: Iterable[msgspec.Raw], base_ns: int) -> TraceEvents:
    """Decode the events for communication, steps, and backward passes.

    Args:
        parts: All events.
        base_ns: Offset of their times from the epoch.
    """
    events = TraceEvents()
    for part in parts:
        try:
            kind = _kind_of(_HEADS.decode(part))
            if kind is _Kind.OPERATION:
                events.has_operators = True
            elif kind is not None:
                events.add(kind, _event(_EVENTS.decode(part), base_ns, events))
        except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
            events.note(str(error))
    return events


def _kind_of(head: _Head) -> _Kind | None:
    """Return the kind of an event; None for events to skip."""
    name = head.name
    if head.ph != "X":
        return None
    category = head.cat.lower()  # capitalized before 2022
    if category == "kernel":
        return _Kind.KERNEL if "ccl" in name.lower() else None
    if category.startswith("gpu_"):
        return None
    if name == "record_param_comms":
        return _Kind.RECORD
    if category == "user_annotation" or name.startswith(_STEP):
        return _kind_of_annotation(name)
    if name.startswith("aten::"):
        return _Kind.OPERATION
    if name.startswith(_EVALUATION):
        return _Kind.BACKWARD
    return _Kind.OPERATOR if name.startswith("c10d::") else None


def _kind_of_annotation(name: str) -> _Kind | None:
    if name.startswith(_STEP):
        return _Kind.STEP
    if name.startswith("gloo:"):
        return _Kind.SLICE
    # FSDP annotates its backward hooks, which run outside of autograd's `evaluate_function`.
    text = name.lower()
    return _Kind.BACKWARD if "backward" in text and "forward" not in text else None


def _event(raw: _Event, base_ns: int, events: TraceEvents) -> TraceEvent:
    begun_ns = base_ns + _nanoseconds(raw.ts)
    ended_ns = begun_ns + _nanoseconds(raw.dur)
    if not 0 <= begun_ns <= ended_ns <= MAX_TIME_NS:
        raise ValueError(f"an event of {raw.name} has an impossible time, {raw.ts}")
    if type(raw.pid) is int and raw.pid > 0 and not events.process and raw.args.record:
        events.process = raw.pid  # device events have the device's index as pid
    thread = raw.tid if type(raw.tid) is int and 0 <= raw.tid < 1 << 32 else 0
    return TraceEvent(raw.name, begun_ns, ended_ns, thread, raw.args)


def _nanoseconds(microseconds: int | float) -> int:
    return microseconds * _NS if isinstance(microseconds, int) else round(microseconds * _NS)


class TimeIndex:
    """An index from times to steps and backward passes."""

    def __init__(self, events: TraceEvents) -> None:
        """Index the steps and the backward passes of a trace."""
        self.steps: Final = tuple(sorted(events.steps.values(), key=lambda step: (step.begun_ns, step.number)))
        self._starts = [step.begun_ns for step in self.steps]
        self._backward = _outermost(events.backward)
        # Autograd has its own threads for devices. On the main thread it runs only CPU nodes.
        self._autograd_threads = {*events.backward} - events.step_threads - {events.process}
        self._has_thread_events = events.has_operators

    def step_at(self, time_ns: int) -> int:
        """Return the number of the step at a time; 0 for none."""
        index = bisect_right(self._starts, time_ns) - 1
        if index < 0:
            return 0
        step = self.steps[index]
        is_last = index == len(self.steps) - 1
        return 0 if is_last and time_ns > step.ended_ns else step.number

    def in_backward(self, thread: int, time_ns: int) -> bool | None:
        """Return whether a thread was in a backward pass; None if the trace has no events of CPU threads."""
        if not self._has_thread_events:
            return None
        if thread in self._autograd_threads:
            return True
        starts, ends = self._backward.get(thread, ((), ()))
        index = bisect_right(starts, time_ns) - 1
        return index >= 0 and time_ns <= ends[index]


def _outermost(by_thread: Mapping[int, list[Interval]]) -> dict[int, tuple[Sequence[int], Sequence[int]]]:
    """Return, for each thread, starts and ends of its merged intervals, ascending."""
    merged: dict[int, tuple[Sequence[int], Sequence[int]]] = {}
    for thread, intervals in by_thread.items():
        starts: list[int] = []
        ends: list[int] = []
        for begun_ns, ended_ns in sorted(intervals):
            if ends and begun_ns <= ends[-1]:
                ends[-1] = max(ends[-1], ended_ns)
            else:
                starts.append(begun_ns)
                ends.append(ended_ns)
        merged[thread] = (starts, ends)
    return merged
