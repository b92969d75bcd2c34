"""Operations of a rank in a report, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from rich.text import Text

from otel_torchdist.cli.output.text import length, shown_callers, time_of_day
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import How
from otel_torchdist.model.remote_calls import WorkerView
from otel_torchdist.naming import name_ranks
from otel_torchdist.verdict.wording.calls import called_in, describe_operation

MAX_OPEN: Final = 8
"""Open operations shown of a rank."""
MAX_CALLS: Final = 4
"""Remote procedure calls shown of a rank, of each side."""


class Timeline(Protocol):
    """The moment that a report is about, on the clock of the records."""

    @property
    def is_now(self) -> bool:
        """Whether that moment is now."""
        ...

    def before_s(self, monotonic_ns: int) -> float:
        """Return how long before the moment a time was, in seconds."""
        ...

    def wall_ns(self, monotonic_ns: int) -> int:
        """Convert a time to nanoseconds since the epoch."""
        ...


def operation_lines(
    timeline: Timeline, still_open: Sequence[OperationView], last: OperationView | None
) -> Iterator[Text]:
    """Yield what a rank has open, and what it has finished last."""
    for operation in still_open[:MAX_OPEN]:
        yield Text(f"  {'in' if operation.record.is_blocking else 'open':5}  {_open(timeline, operation)}")
        if operation.record.is_blocking and len(operation.path) > 1:
            yield Text(f"         from {shown_callers(operation.path)}")
    if len(still_open) > MAX_OPEN:
        yield Text(f"         and {len(still_open) - MAX_OPEN} more open operations")
    if last is not None:
        yield Text(f"  last   {_ended(timeline, last)}")


def call_lines(timeline: Timeline, worker: WorkerView | None) -> Iterator[Text]:
    """Yield which remote procedure calls a worker has open, and whether it waits for all others."""
    if worker is None:
        return
    for name, since_ns in (("init_rpc", worker.joins_since_ns), ("rpc.shutdown", worker.leaves_since_ns)):
        if since_ns is not None:
            yield Text(f"  in     {name}, as {worker.name}, for {length(timeline.before_s(since_ns))}")
    for calls, verb in ((worker.made, "calls"), (worker.served, "runs")):
        for call in calls[:MAX_CALLS]:
            called = called_in(call.call_site)
            where = f"for {call.peer or 'another worker'}" if call.is_served else f"on {call.peer or 'another worker'}"
            yield Text(f"  {verb:5}  {call.function} {where} for {length(timeline.before_s(call.since_ns))}{called}")
        if len(calls) > MAX_CALLS:
            yield Text(f"         and {len(calls) - MAX_CALLS} more that it {verb}")


def _open(timeline: Timeline, operation: OperationView) -> str:
    since_ns = operation.waiting_since_ns or operation.record.entered_ns
    return f"{_named(operation)} for {length(timeline.before_s(since_ns))}{_called(operation)}"


def _ended(timeline: Timeline, operation: OperationView) -> str:
    record = operation.record
    ended_ns = record.completed_ns or record.entered_ns
    if record.how is How.UNTRACKED:
        return f"{_named(operation)} called {ago(timeline, record.entered_ns)}, over by now{_called(operation)}"
    how = f"failed with {operation.failure or 'an exception'}" if record.how is How.FAILED else "ended"
    lasted = f"after {length((ended_ns - record.entered_ns) / 1e9)}"
    return f"{_named(operation)} {how} {ago(timeline, ended_ns)}, {lasted}{_called(operation)}"


def _named(operation: OperationView) -> str:
    described = describe_operation(operation.name, operation.group, operation.operation_id, operation.label)
    group = operation.group
    if group is None or operation.operation_id.channel.is_point_to_point:
        return described
    return f"{described} of {name_ranks(sorted(group.members))}"


def _called(operation: OperationView) -> str:
    return called_in(operation.call_site)


def when(timeline: Timeline, monotonic_ns: int) -> str:
    """Return a time of day, and how long before the moment it was."""
    return f"{time_of_day(timeline.wall_ns(monotonic_ns))} ({ago(timeline, monotonic_ns)})"


def ago(timeline: Timeline, monotonic_ns: int) -> str:
    """Return how long before the moment a time was."""
    return f"{length(timeline.before_s(monotonic_ns))} {'ago' if timeline.is_now else 'earlier'}"
