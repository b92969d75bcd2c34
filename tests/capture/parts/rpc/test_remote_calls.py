"""Remote procedure calls between workers: their records, and that the program sees no difference."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind

from otel_torchdist.model.history import Activity
from otel_torchdist.model.ids import anchor_span_id, trace_id_of_step
from otel_torchdist.model.kinds import ActivityKind, CallMode, How, RunIdState, TapeState
from otel_torchdist.model.remote_calls import RemoteCall
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.recorded import RecordedTape

pytestmark = NATIVE_LATER
_OF_TORCH = ("_gather_to_leader", "_broadcast_to_followers", "_rref_typeof_on_owner")


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """Three workers, of which 0 and 1 are recorded."""
    return jobs.run("remote_calls", 3)


def call_of(activity: Activity) -> RemoteCall:
    """Return the fields of a call that other activities lack."""
    assert activity.call is not None
    return activity.call


def sides(tape: RecordedTape, kind: ActivityKind) -> list[tuple[Activity, str]]:
    """Return the calls of one side on a tape."""
    return [(activity, name) for activity, name in tape.activities if activity.kind is kind]


def test_program_sees_no_difference(jobs: Jobs, job: Job) -> None:
    """Results, error types and tracebacks, local and remote, equal those without recording, frame by frame."""
    bare = jobs.run("remote_calls", 3, "bare")
    assert bare.tapes == []
    recorded, unrecorded = (one.ranks[0].lines() for one in (job, bare))
    assert len(recorded) == 16
    if sys.version_info < (3, 11):  # it keeps our frames in tracebacks
        recorded, unrecorded = (
            [{key: value for key, value in line.items() if key != "text"} for line in lines]
            for lines in (recorded, unrecorded)
        )
    assert recorded == unrecorded


def test_one_tape_from_init_rpc_to_shutdown(job: Job) -> None:
    """Workers without a group have a tape and agree on a run id. A group of the same ranks continues on that tape."""
    assert [tape.identity.rank for tape in job.tapes] == [0, 1]
    assert {tape.identity.world_size for tape in job.tapes} == {3}
    assert {tape.status.run_id_state for tape in job.tapes} == {RunIdState.AGREED}
    assert len({tape.status.run_id for tape in job.tapes}) == 1
    for tape in job.tapes:
        assert tape.status.state is TapeState.FINISHED
        assert tape.status.rpc_threads == 4
        assert [one.name for one in tape.operations] == ["all_reduce"]
        [join] = sides(tape, ActivityKind.RPC_JOIN)
        [shutdown] = sides(tape, ActivityKind.RPC_SHUTDOWN)
        assert [join[1], shutdown[1]] == [f"worker{tape.identity.rank}"] * 2
        assert {join[0].how, shutdown[0].how} == {How.CALL}


def test_callers_side(job: Job) -> None:
    """Each kind of call has function, worker and mode. torch's internal calls are left out."""
    calls = sides(job.tapes[0], ActivityKind.RPC_CLIENT)
    sync, asynchronous, remote = CallMode.SYNC, CallMode.ASYNC, CallMode.REMOTE
    found = [(name, call_of(call).mode, call_of(call).worker) for call, name in calls]
    assert found[:-70] == [
        ("add", sync, 1),
        ("add", asynchronous, 1),
        ("add", sync, 1),
        ("aten::add", sync, 1),
        ("doubled", sync, 1),
        ("within", sync, 1),
        ("later", sync, 1),
        ("Table", remote, 1),
        ("RRef.more", sync, 1),
        ("RRef.more", asynchronous, 1),
        ("RRef.more", remote, 1),
        ("add", remote, 0),
        *[("add", asynchronous, 1)] * 3,
        ("add", sync, 2),
        ("has_served", sync, 2),
        ("fails", sync, 1),
        ("fails_later", sync, 1),
        ("add", sync, 1),
        ("no_function", sync, 1),
    ]
    assert not {name for _, name in calls} & set(_OF_TORCH)
    synchronous = [call for call, _ in calls if call_of(call).mode is sync]
    ends = Counter(call.how for call in synchronous)
    assert {*ends} - {How.POLL} == {How.WAIT, How.FAILED}
    assert ends[How.POLL] < ends[How.WAIT]  # a poll comes first where a busy machine lets the thread wait for 20 ms
    assert all(call.how is not None for call, _ in calls)


def test_both_sides_know_each_other(job: Job) -> None:
    """The callee's record has the tape and number of the caller's record, and lies within it in time.

    A request without this data has no known caller.
    """
    caller, callee = job.tapes
    nonce = caller.identity.nonce
    calls = {call.number: (call, name) for call, name in sides(caller, ActivityKind.RPC_CLIENT)}
    served = [(call, name) for call, name in sides(callee, ActivityKind.RPC_SERVER) if call_of(call).caller_nonce]
    assert len(served) > 80
    for run, name in served:
        call, called = calls[call_of(run).caller_number]
        assert (call_of(run).caller_nonce, name, call_of(run).worker) == (nonce, called, 0)
        assert call.entered_ns <= run.entered_ns
        assert call.completed_ns is not None
        assert run.completed_ns is not None
        if call.how is How.WAIT:
            assert run.completed_ns <= call.completed_ns + 1_000_000
    [stranger] = [call for call, _ in sides(callee, ActivityKind.RPC_SERVER) if not call_of(call).caller_nonce]
    assert call_of(stranger).worker == -1


def test_asynchronous_execution(job: Job) -> None:
    """A function that returns a future frees its thread immediately, and ends when the future has its result."""
    [(later, _)] = [one for one in sides(job.tapes[1], ActivityKind.RPC_SERVER) if one[1] == "later"]
    [(awaited, _)] = [one for one in sides(job.tapes[0], ActivityKind.RPC_SERVER) if one[1] == "sleep"]
    returned_ns = call_of(later).returned_ns
    assert returned_ns is not None
    assert awaited.completed_ns is not None
    assert later.completed_ns is not None
    assert later.completed_ns - later.entered_ns > 990_000_000
    assert returned_ns < awaited.completed_ns
    failures = Counter(activity.how for activity, name in job.tapes[1].activities if name.startswith("fails"))
    assert failures == {How.FAILED: 2}


def test_windows_of_calls(job: Job) -> None:
    """Without another source of steps, 64 calls make a step, so traces stay bounded."""
    assert 1 <= len(job.tapes[0].steps) <= 3


class AnyOrderSink(MemorySink):
    """A sink of spans in which either side of a call may come first."""

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Keep spans."""
        self.spans += spans


def test_spans_of_both_sides_are_one_trace(job: Job) -> None:
    """CLIENT spans are under their step's anchor, SERVER spans under CLIENT, nested calls under their function."""
    sink = AnyOrderSink()
    for tape in job.tapes:
        reader = TapeReader(tape.path)
        spans = RankSpans(reader, sink, StepSampler(ALWAYS_ON, 10_000, tape.identity.rank, 3))
        for batch in reader.poll_to_end():
            spans.consume(batch, reader.status(), tape.status.heartbeat_ns)
        spans.close(tape.status.heartbeat_ns)
        reader.close()
    by_id = {span.span_id: span for span in sink.spans}
    assert len(by_id) == len(sink.spans)
    caller = job.tapes[0]
    [within] = [span for span in sink.spans if span.name == "within" and span.kind is SpanKind.CLIENT]
    assert within.parent_id == anchor_span_id(caller.identity.nonce, 0, 0)
    assert within.trace_id == trace_id_of_step(caller.status.run_id, 0)
    [served] = [span for span in sink.spans if span.parent_id == within.span_id]
    [inner] = [span for span in sink.spans if span.parent_id == served.span_id]
    [innermost] = [span for span in sink.spans if span.parent_id == inner.span_id]
    kinds = [span.kind for span in (within, served, inner, innermost)]
    assert kinds == [SpanKind.CLIENT, SpanKind.SERVER] * 2
    assert [one.attributes[semconv.RANK] for one in (within, served, inner, innermost)] == [0, 1, 1, 0]
    assert {one.trace_id for one in (served, inner, innermost)} == {within.trace_id}
    facts = {name: within.attributes[name] for name in (semconv.RPC_SYSTEM, semconv.RPC_METHOD, semconv.RPC_PEER)}
    assert list(facts.values()) == ["torch", "within", "worker1"]
    assert str(within.attributes[semconv.CODE_FILE]).endswith("workers/remote_calls.py")
    failed = [span for span in sink.spans if span.name == "fails"]
    assert [span.error for span in failed] == ["fails raised ValueError"] * 2
    assert [span.attributes[semconv.ERROR_TYPE] for span in failed] == ["ValueError"] * 2
    for span in sink.spans:
        if span.parent_id is not None:
            assert by_id[span.parent_id].trace_id == span.trace_id


def test_durations(job: Job) -> None:
    """Durations of both sides are counted by function and error, if the end is exact."""
    node = NodeMetrics()
    for tape in job.tapes:
        reader = TapeReader(tape.path)
        metrics = node.track(reader)
        for batch in reader.poll_to_end():
            metrics.consume(batch, reader.status(), tape.status.heartbeat_ns)
        reader.close()
    [run] = node.snapshot().runs.values()
    counts = {(name, labels[1:]): durations.count for (name, labels), durations in run.calls.items()}
    client, server = semconv.RPC_CLIENT_DURATION, semconv.RPC_SERVER_DURATION
    assert counts[client, ("fails", "ValueError")] == counts[server, ("fails", "ValueError")] == 1
    assert counts[client, ("add", "")] >= 73
    assert counts[server, ("add", "")] >= 75
    assert {labels[0] for _, labels in run.calls} == {"torch"}


def test_worker_in_no_group(jobs: Jobs) -> None:
    """Worker ids are not ranks: workers without a group form a separate run, others record on their group's tape."""
    job = jobs.run("rpc_and_group", 3, "first")
    of_group = [tape for tape in job.tapes if tape.identity.world_size == 2]
    [other] = [tape for tape in job.tapes if tape.identity.world_size == 3]
    assert job.ranks[1].line() == {"sums": [4.0, 4.0]}
    assert [tape.identity.rank for tape in of_group] == [0, 1]
    assert len({tape.status.run_id for tape in of_group}) == 1
    assert {tape.status.run_id_state for tape in job.tapes} == {RunIdState.AGREED}
    assert other.status.run_id != of_group[0].status.run_id
    calls = {call.number: call_of(call).worker for call, _ in sides(other, ActivityKind.RPC_CLIENT)}
    assert sorted(calls.values()) == [0, 2]
    for tape in of_group:
        [(served, _)] = sides(tape, ActivityKind.RPC_SERVER)
        assert call_of(served).caller_nonce == other.identity.nonce
        assert calls[call_of(served).caller_number] == 2 * (1 - tape.identity.rank)
        assert len(tape.named("all_reduce")) == 1


def test_group_made_in_a_call(jobs: Jobs) -> None:
    """A function that creates a group with other ranks is first on the workers' tape, then on the group's."""
    job = jobs.run("rpc_and_group", 3, "later")
    served = {
        (tape.identity.world_size, tape.identity.rank): [call.how for call, _ in sides(tape, ActivityKind.RPC_SERVER)]
        for tape in job.tapes
    }
    before, after = [How.UNTRACKED], [How.CALL]
    assert served == {(3, 0): before, (3, 1): [], (3, 2): before, (2, 0): after, (2, 1): after}
    of_group = [tape for tape in job.tapes if tape.identity.world_size == 2]
    assert [len(tape.named("all_reduce")) for tape in of_group] == [1, 1]
    assert {tape.status.run_id_state for tape in job.tapes} == {RunIdState.AGREED}


def test_unknown_torch(jobs: Jobs) -> None:
    """If torch lacks a needed private name, calls work as before, and one warning says why none is recorded."""
    job = jobs.run("no_rpc_hook")
    assert job.ranks[0].lines() == [{"sum": 3}]
    assert job.tapes == []
    lines = [line for line in job.ranks[0].err.splitlines() if "recorded" in line]
    assert lines == [
        "this torch has no torch.distributed.rpc.internal.RPCExecMode: remote procedure calls are not recorded"
    ]
