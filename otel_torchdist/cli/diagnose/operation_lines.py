"""Operations of a rank in a report, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

from otel_torchdist.cli.diagnose.moment import ReportedMoment
from otel_torchdist.cli.output.text import length, shown_callers
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import How
from otel_torchdist.model.remote_calls import WorkerView
from otel_torchdist.naming import name_ranks
from otel_torchdist.verdict.wording.calls import called_in, describe_operation

MAX_OPEN: Final = 8
"""Open operations shown of a rank."""
MAX_CALLS: Final = 4
"""Remote procedure calls shown of a rank, of each side."""


def operation_lines(
    moment: ReportedMoment, still_open: Sequence[OperationView], last: OperationView | None
) -> Iterator[Text]:
    """Yield what a rank has open, and what it has finished last."""
    for operation in still_open[:MAX_OPEN]:
        yield Text(f"  {'in' if operation.record.is_blocking else 'open':5}  {_open(moment, operation)}")
        if operation.record.is_blocking and len(operation.path) > 1:
            yield Text(f"         from {shown_callers(operation.path)}")
    if len(still_open) > MAX_OPEN:
        yield Text(f"         and {len(still_open) - MAX_OPEN} more open operations")
    if last is not None:
        yield Text(f"  last   {_ended(moment, last)}")


def call_lines(moment: ReportedMoment, worker: WorkerView | None) -> Iterator[Text]:
    """Yield which remote procedure calls a worker has open, and whether it waits for all others."""
    if worker is None:
        return
    for name, since_ns in (("init_rpc", worker.joins_since_ns), ("rpc.shutdown", worker.leaves_since_ns)):
        if since_ns is not None:
            yield Text(f"  in     {name}, as {worker.name}, for {length(moment.before_s(since_ns))}")
    for calls, verb in ((worker.made, "calls"), (worker.served, "runs")):
        for call in calls[:MAX_CALLS]:
            called = called_in(call.call_site)
            where = f"for {call.peer or 'another worker'}" if call.is_served else f"on {call.peer or 'another worker'}"
            yield Text(f"  {verb:5}  {call.function} {where} for {length(moment.before_s(call.since_ns))}{called}")
        if len(calls) > MAX_CALLS:
            yield Text(f"         and {len(calls) - MAX_CALLS} more that it {verb}")


def _open(moment: ReportedMoment, operation: OperationView) -> str:
    since_ns = operation.waiting_since_ns or operation.record.entered_ns
    return f"{_named(operation)} for {length(moment.before_s(since_ns))}{_called(operation)}"


def _ended(moment: ReportedMoment, operation: OperationView) -> str:
    record = operation.record
    ended_ns = record.completed_ns or record.entered_ns
    if record.how is How.UNTRACKED:
        return f"{_named(operation)} called {moment.ago(record.entered_ns)}, over by now{_called(operation)}"
    how = f"failed with {operation.failure or 'an exception'}" if record.how is How.FAILED else "ended"
    lasted = f"after {length((ended_ns - record.entered_ns) / 1e9)}"
    return f"{_named(operation)} {how} {moment.ago(ended_ns)}, {lasted}{_called(operation)}"


def _named(operation: OperationView) -> str:
    described = describe_operation(operation.name, operation.group, operation.operation_id, operation.label)
    group = operation.group
    if group is None or operation.operation_id.channel.is_point_to_point:
        return described
    return f"{described} of {name_ranks(sorted(group.members))}"


def _called(operation: OperationView) -> str:
    return called_in(operation.call_site)
