"""From the records of a real tape to finished spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

from otel_torchdist import semconv
from otel_torchdist.tape.layout import Flag, How, RecordKind, RunIdState, TapeState, Word
from otel_torchdist.tape.names import OTHER
from otel_torchdist.tape.records import GroupName, SignatureName
from otel_torchdist.telemetry.ids import lone_run_id, operation_span_id, trace_id_of_step
from otel_torchdist.telemetry.model import LinkTarget
from otel_torchdist.telemetry.sampling import StepSampler
from otel_torchdist.telemetry.spans import MAX_HELD_SPANS, RankSpans
from tests.support.memory_sink import MemorySink
from tests.support.rank_tape import RUN, SECOND, WALL_OFFSET_NS, RankTape


class Rank:
    """One rank: a tape, the spans made of it, and the sink that gets them."""

    def __init__(self, tape: RankTape, sampler: Sampler = ALWAYS_ON, links: tuple[LinkTarget, ...] = ()) -> None:
        self.tape = tape
        self.sink = MemorySink()
        identity = tape.reader.identity
        step_sampler = StepSampler(sampler, 100_000, identity.rank, identity.world_size)
        self.spans = RankSpans(tape.reader, self.sink, step_sampler, links)

    def poll(self) -> None:
        """One turn of a reader."""
        self.spans.consume(self.tape.reader.poll(), self.tape.status(), self.tape.now_ns)

    def close(self) -> None:
        """The tape is over."""
        self.poll()
        self.spans.close(self.tape.now_ns)


@pytest.fixture
def make_tape(tmp_path: Path) -> Iterator[Callable[..., RankTape]]:
    """Creates tapes and closes them afterwards."""
    tapes: list[RankTape] = []

    def make(**arguments: int) -> RankTape:
        tapes.append(RankTape(tmp_path, **arguments))
        return tapes[-1]

    yield make
    for tape in tapes:
        tape.writer.close()


@pytest.fixture
def tape(make_tape: Callable[..., RankTape]) -> RankTape:
    """A tape whose run id is agreed."""
    tape = make_tape()
    tape.agree()
    return tape


@pytest.fixture
def rank(tape: RankTape) -> Rank:
    """Rank 2 of 4, every step sampled."""
    return Rank(tape)


def test_a_step_is_one_anchor_with_its_operations(rank: Rank) -> None:
    """A step leaves when it has ended: anchor first, its operations inside its time, all in the step's trace."""
    first, second = rank.tape.operation(0.5), rank.tape.operation(0.25)
    rank.poll()
    assert rank.sink.spans == []
    rank.tape.pass_s(0.25)
    rank.tape.end_step()
    rank.poll()

    anchor, *operations = rank.sink.spans
    assert (anchor.name, anchor.parent_id, anchor.error, anchor.links) == ("step (rank 2)", None, None, ())
    assert anchor.trace_id == trace_id_of_step(RUN, 0)
    assert anchor.start_ns == 1_000 * SECOND + WALL_OFFSET_NS
    assert anchor.end_ns == anchor.start_ns + SECOND
    assert anchor.attributes == {
        semconv.RANK: 2,
        semconv.WORLD_SIZE: 4,
        semconv.RUN: "01234567",
        semconv.STEP: 0,
        semconv.STEP_SEGMENT: 0,
        semconv.STEP_SEGMENT_END: "step",
        semconv.HOST_NAME: "node-1",
        semconv.PROCESS_PID: rank.tape.reader.identity.pid,
        semconv.GROUP_RANKS: [f"{_group_key(rank)}: 0-3"],
    }
    nonce = rank.tape.reader.identity.nonce
    assert [span.span_id for span in operations] == [operation_span_id(nonce, number) for number in (first, second)]
    assert {span.parent_id for span in operations} == {anchor.span_id}
    assert [(span.start_ns - anchor.start_ns, span.end_ns - anchor.start_ns) for span in operations] == [
        (0, SECOND // 2),
        (SECOND // 2, SECOND * 3 // 4),
    ]


def _group_key(rank: Rank) -> str:
    group = rank.tape.reader.names.group(rank.tape.group)
    assert group is not None
    return group.key


def test_an_operation_tells_everything_that_its_record_knows(rank: Rank) -> None:
    """Every attribute has its documented name and type; the time for which the thread was blocked adds up."""
    number = rank.tape.enter(Flag.ASYNC)
    rank.tape.pass_s(0.001)
    rank.tape.mark(number, Word.RETURNED)
    rank.tape.pass_s(1)
    rank.tape.mark(number, Word.WAIT_ENTERED)
    rank.tape.pass_s(0.5)
    rank.tape.end(number, How.WAIT)
    rank.tape.end_step()
    rank.poll()

    [span] = rank.sink.operations
    assert span.name == "all_reduce"
    assert span.error is None
    assert span.attributes == {
        semconv.OPERATION: "all_reduce",
        semconv.RANK: 2,
        semconv.REDUCE_OP: "sum",
        semconv.TENSOR_SHAPES: ["64x128", "scalar"],
        semconv.TENSOR_DTYPES: ["float32"],
        semconv.TENSOR_DEVICE: "cpu",
        semconv.TENSOR_COUNT: 2,
        semconv.GROUP_HASH: _group_key(rank),
        semconv.GROUP_SIZE: 4,
        semconv.GROUP_DESCRIPTION: "default_pg",
        semconv.CODE_FUNCTION: "train",
        semconv.CODE_FILE: "/home/user/train.py",
        semconv.CODE_LINE: 42,
        semconv.CALLER: "DDP",
        semconv.SEQUENCE: 1,
        semconv.STEP: 0,
        semconv.MESSAGE_SIZE: 32_768,
        semconv.ASYNC: True,
        semconv.SYNC_DURATION: pytest.approx(0.501),
        semconv.COMPLETION: "wait",
        semconv.COMPLETION_RESOLUTION: 0.0,
    }
    assert isinstance(span.attributes[semconv.SYNC_DURATION], float)
    assert span.attributes[semconv.ASYNC] is True


@pytest.mark.parametrize(
    ("how", "resolution"),
    [
        (How.CALL, 0.0),
        (How.WAIT, 0.0),
        (How.POLL, 0.06),
        (How.EVENT, 0.001),
        (How.WATCHDOG, 0.12),
        (How.UNTRACKED, None),
        (How.ABANDONED, None),
    ],
)
def test_how_an_end_is_known_and_how_coarse(rank: Rank, how: How, resolution: float | None) -> None:
    """An end that is not known exactly says so, and one that is not known at all claims no resolution."""
    rank.tape.operation(how=how)
    rank.tape.end_step()
    rank.poll()
    [span] = rank.sink.operations
    assert span.attributes[semconv.COMPLETION] == how.name.lower()
    assert span.attributes.get(semconv.COMPLETION_RESOLUTION) == resolution
    assert span.error is None


def test_an_operation_that_raised_is_an_error(rank: Rank) -> None:
    """The exception's type is in `error.type` and in the status."""
    rank.tape.end(rank.tape.enter(), How.FAILED, "DistBackendError")
    rank.tape.end_step()
    rank.poll()
    [span] = rank.sink.operations
    assert span.error == "all_reduce raised DistBackendError"
    assert span.attributes[semconv.ERROR_TYPE] == "DistBackendError"


def test_point_to_point_rendezvous_and_what_is_not_known(rank: Rank) -> None:
    """Peer and tag are there for point-to-point only; a rendezvous has its operation's name; names may be missing."""
    names = rank.tape.writer.names
    send = names.intern(SignatureName("send", "", ((3,),), ("int64",), "cpu", 1))
    new_group = names.intern(SignatureName("new_group", "", (), (), "", 0))
    late = names.intern(GroupName("7", "", (0, 2), nth=1, backend="gloo", aligned=False))
    rank.tape.end(rank.tape.enter(Flag.POINT_TO_POINT, signature=send, peer=3, tag=9, group=late))
    rank.tape.end(rank.tape.enter(kind=RecordKind.RENDEZVOUS, signature=new_group, group=OTHER))
    rank.tape.end(rank.tape.enter(signature=OTHER, group=OTHER))
    rank.tape.end_step()
    rank.poll()

    sent, created, unknown = rank.sink.operations
    assert (sent.name, sent.attributes[semconv.PEER], sent.attributes[semconv.TAG]) == ("send", 3, 9)
    assert sent.attributes[semconv.SEQUENCE_ALIGNED] is False
    assert semconv.GROUP_DESCRIPTION not in sent.attributes
    assert semconv.REDUCE_OP not in sent.attributes
    assert created.name == "new_group"
    assert not {semconv.TAG, semconv.PEER, semconv.GROUP_HASH, semconv.TENSOR_SHAPES} & set(created.attributes)
    assert unknown.name == semconv.OTHER


def test_a_bar_is_never_empty(rank: Rank) -> None:
    """An operation of no measurable length still lasts the microsecond that viewers can show."""
    rank.tape.operation(0)
    rank.tape.end_step()
    rank.poll()
    assert {span.end_ns - span.start_ns for span in rank.sink.spans} == {1_000}


def test_segments_end_after_thirty_seconds_and_are_linked(rank: Rank) -> None:
    """A long step is exported piece by piece; pieces without an operation are left out; the last shows its end."""
    rank.tape.operation(10)
    rank.tape.pass_s(70)
    rank.poll()
    rank.tape.operation(5)
    rank.poll()
    rank.tape.pass_s(25)
    rank.tape.end_step()
    rank.poll()

    start_ns = 1_000 * SECOND + WALL_OFFSET_NS
    anchors = rank.sink.anchors
    assert [((a.start_ns - start_ns) // SECOND, (a.end_ns - start_ns) // SECOND) for a in anchors] == [
        (0, 30),
        (60, 90),
        (90, 110),
    ]
    assert [anchor.attributes[semconv.STEP_SEGMENT] for anchor in anchors] == [0, 1, 2]
    assert [anchor.attributes[semconv.STEP_SEGMENT_END] for anchor in anchors] == ["time", "time", "step"]
    assert len({anchor.trace_id for anchor in anchors}) == 1
    targets = [LinkTarget(anchor.trace_id, anchor.span_id) for anchor in anchors]
    assert [anchor.links for anchor in anchors] == [(), (targets[0],), (targets[1],)]
    assert [len(rank.sink.under(anchor)) for anchor in anchors] == [1, 1, 0]


def test_an_operation_that_outlives_its_step_is_in_the_trace_of_the_step_in_which_it_ends(rank: Rank) -> None:
    """It starts before its anchor, says in which step it was entered, and keeps nothing waiting."""
    number = rank.tape.enter(Flag.ASYNC)
    rank.tape.pass_s(1)
    rank.tape.end_step()
    rank.poll()
    assert [span.name for span in rank.sink.spans] == ["step (rank 2)"]
    rank.tape.pass_s(1)
    rank.tape.end(number, How.POLL)
    rank.tape.end_step()
    rank.poll()
    [span] = rank.sink.operations
    assert span.trace_id == trace_id_of_step(RUN, 1)
    assert span.attributes[semconv.STEP] == 0
    assert span.end_ns - span.start_ns == 2 * SECOND


def test_a_poll_that_stops_early_sorts_operations_into_the_right_steps(rank: Rank) -> None:
    """An end that is seen before the step mark that precedes it still goes to the later step."""
    slow = rank.tape.enter(Flag.ASYNC)
    rank.tape.operation()
    rank.tape.end_step()
    rank.tape.pass_s(0.1)
    rank.tape.end(slow, How.POLL)
    rank.tape.end_step()
    status = rank.tape.status()
    rank.spans.consume(rank.tape.reader.poll(limit=1), status, rank.tape.now_ns)
    rank.poll()
    anchors = rank.sink.anchors
    assert [anchor.attributes[semconv.STEP] for anchor in anchors] == [0, 1]
    assert [len(rank.sink.under(anchor)) for anchor in anchors] == [1, 1]


def test_a_reader_that_lags_behind_keeps_steps_whole(rank: Rank) -> None:
    """Time that has passed for the reader has not passed on the tape as long as there are records to read."""
    for _ in range(3):
        rank.tape.operation(1)
        rank.tape.pass_s(9)
        rank.tape.end_step()
    rank.tape.pass_s(300)
    for _ in range(7):
        rank.spans.consume(rank.tape.reader.poll(limit=1), rank.tape.status(), rank.tape.now_ns)
    assert [anchor.attributes[semconv.STEP_SEGMENT_END] for anchor in rank.sink.anchors] == ["step"] * 3
    assert {anchor.end_ns - anchor.start_ns for anchor in rank.sink.anchors} == {10 * SECOND}


def test_an_operation_that_overtakes_the_end_of_the_step_before(rank: Rank) -> None:
    """Another thread may record the new step's first operation before the old step's end is recorded."""
    rank.tape.operation(1)
    rank.tape.step = 1
    early = rank.tape.enter()
    rank.tape.step = 0
    rank.tape.end_step()
    rank.tape.pass_s(1)
    rank.tape.end(early)
    rank.tape.end_step()
    rank.poll()
    steps = [(anchor.attributes[semconv.STEP], len(rank.sink.under(anchor))) for anchor in rank.sink.anchors]
    assert steps == [(0, 1), (1, 1)]


def test_a_stall_ends_the_segment_at_once(rank: Rank) -> None:
    """The anchor goes ahead of everything as a parent for markers; what hung is shown once, at its end."""
    rank.tape.operation(1)
    hanging = rank.tape.enter()
    rank.tape.pass_s(12)
    rank.poll()
    incident = LinkTarget(77, 88)
    anchor = rank.spans.end_segment(rank.tape.now_ns, incident)
    target = rank.spans.stalled(hanging, incident)
    first, second = rank.sink.groups
    assert (len(first[0]), first[1], second[1]) == (1, True, False)
    assert anchor == LinkTarget(first[0][0].trace_id, first[0][0].span_id)
    assert first[0][0].attributes[semconv.STEP_SEGMENT_END] == "stall"
    assert first[0][0].links == (incident,)

    assert rank.spans.end_segment(rank.tape.now_ns) == anchor, "nothing has ended since: no second anchor"
    rank.tape.pass_s(20)
    rank.tape.end(hanging)
    rank.tape.end_step()
    rank.poll()
    last = rank.sink.operations[-1]
    assert LinkTarget(last.trace_id, last.span_id) == target
    assert last.attributes[semconv.STALLED] is True
    assert last.links == (incident,)
    assert last.end_ns - last.start_ns == 32 * SECOND
    assert [len(rank.sink.under(anchor)) for anchor in rank.sink.anchors] == [1, 1]
    assert rank.sink.anchors[1].links == (anchor,)


def test_a_stall_does_not_wait_for_the_run_id(make_tape: Callable[..., RankTape]) -> None:
    """A hang in the first collective keeps ranks from agreeing: the provisional id is good enough for its evidence."""
    tape = make_tape()
    tape.agree(RunIdState.PROVISIONAL)
    rank = Rank(tape)
    tape.enter()
    tape.pass_s(11)
    rank.poll()
    assert rank.sink.spans == []
    anchor = rank.spans.end_segment(tape.now_ns)
    assert anchor.trace_id == trace_id_of_step(RUN, 0)
    assert [span.span_id for span in rank.sink.spans] == [anchor.span_id]


def test_nothing_leaves_before_the_run_id_is_settled(make_tape: Callable[..., RankTape]) -> None:
    """Spans wait for AGREED or UNAGREED and then leave under that id, not under the provisional one."""
    tape = make_tape()
    tape.agree(RunIdState.PROVISIONAL, run_id=99)
    rank = Rank(tape)
    for _ in range(2):
        tape.operation()
        tape.end_step()
        rank.poll()
    assert rank.sink.spans == []
    tape.agree()
    rank.poll()
    assert [span.trace_id for span in rank.sink.anchors] == [trace_id_of_step(RUN, step) for step in (0, 1)]


@pytest.mark.parametrize("ends_early", [False, True])
def test_waiting_for_the_run_id_has_an_end(make_tape: Callable[..., RankTape], ends_early: bool) -> None:
    """After 30 s, or when the tape is over, spans leave under an id of the tape's own."""
    tape = make_tape()
    rank = Rank(tape)
    tape.operation()
    tape.end_step()
    rank.poll()
    assert rank.sink.spans == []
    if ends_early:
        rank.close()
    else:
        tape.pass_s(30)
        rank.poll()
    assert [span.trace_id for span in rank.sink.anchors] == [
        trace_id_of_step(lone_run_id(tape.reader.identity.nonce), 0)
    ]


def test_what_waits_for_the_run_id_is_bounded_and_counted(make_tape: Callable[..., RankTape]) -> None:
    """The oldest segments go as a whole, and every span that is gone is counted."""
    tape = make_tape(capacity=16_384)
    rank = Rank(tape)
    total = 0
    for _ in range(25):
        for _ in range(1_000):
            tape.operation(0.000_001)
        tape.end_step()
        total += 1_001
        rank.poll()
    tape.agree()
    rank.poll()
    assert len(rank.sink.spans) <= MAX_HELD_SPANS
    assert rank.spans.dropped == total - len(rank.sink.spans)
    assert rank.sink.anchors[-1].attributes[semconv.STEP] == 24


def test_a_segment_is_bounded(rank: Rank) -> None:
    """More operations than fit into one segment leave early, in segments of their own, and none is lost."""
    for _ in range(3):
        for _ in range(1_500):
            rank.tape.operation(0.000_01)
        rank.poll()
    assert len(rank.sink.operations) == 4_000
    rank.tape.end_step()
    rank.poll()
    assert len(rank.sink.operations) == 4_500
    assert [anchor.attributes[semconv.STEP_SEGMENT_END] for anchor in rank.sink.anchors] == ["size", "size", "step"]


@pytest.mark.parametrize(
    ("state", "failure", "sentence"),
    [
        (TapeState.RUNNING, "", "all_reduce was still in progress when the process was gone"),
        (TapeState.FAILED, "ValueError", "all_reduce was still in progress when the process failed with ValueError"),
        (TapeState.FINISHED, "", "all_reduce was still in progress when the process ended"),
    ],
)
def test_operations_that_are_open_at_the_end_are_shown(
    tape: RankTape, state: TapeState, failure: str, sentence: str
) -> None:
    """They end with the tape, as errors that say why, under the id that their span would have had anyway."""
    rank = Rank(tape, ALWAYS_OFF if state is not TapeState.FINISHED else ALWAYS_ON)
    number = tape.enter()
    tape.pass_s(3)
    if state is not TapeState.RUNNING:
        tape.writer.finish(state, tape.writer.names.intern(failure) if failure else 0)
    rank.close()
    rank.spans.close(tape.now_ns)
    [span] = rank.sink.operations
    assert span.span_id == operation_span_id(tape.reader.identity.nonce, number)
    assert span.error == sentence
    assert span.attributes[semconv.COMPLETION] == "unknown"
    assert semconv.COMPLETION_RESOLUTION not in span.attributes
    assert span.end_ns - span.start_ns == 3 * SECOND


def test_an_open_operation_that_nobody_waited_for_is_no_error(rank: Rank) -> None:
    """A gloo send that nobody ever waits for tells nothing by being open."""
    number = rank.tape.enter(Flag.ASYNC | Flag.END_BY_WAIT)
    rank.tape.pass_s(0.001)
    rank.tape.mark(number, Word.RETURNED)
    rank.close()
    [span] = rank.sink.operations
    assert span.error is None
    assert span.attributes[semconv.COMPLETION] == "unknown"


@pytest.mark.parametrize(("start", "resolution"), [(How.EVENT, 0.001), (How.WATCHDOG, 0.12), (How.POLL, 0.06)])
def test_times_on_a_device(rank: Rank, start: How, resolution: float) -> None:
    """How long an operation stood in the device's queue, how long the device had it, and how well that is known."""
    number = rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.pass_s(2)
    rank.tape.writer.mark(number, Word.STARTED, 2 * SECOND, start)
    rank.tape.pass_s(0.5)
    rank.tape.end(number, How.EVENT)
    rank.tape.end_step()
    rank.poll()
    [span] = rank.sink.operations
    assert span.attributes[semconv.DEVICE_QUEUE_DURATION] == 2.0
    assert span.attributes[semconv.DEVICE_START_RESOLUTION] == resolution
    assert span.attributes[semconv.DEVICE_DURATION] == 0.5


def test_what_is_not_known_of_a_device_is_not_said(rank: Rank) -> None:
    """Where nobody has asked the device there are no times of its own; on the host there never are."""
    number = rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.writer.mark(number, Word.STARTED, 0, How.UNTRACKED)
    rank.tape.pass_s(0.1)
    rank.tape.end(number, How.UNTRACKED)
    rank.tape.operation(how=How.WAIT)
    rank.tape.end_step()
    rank.poll()
    for span in rank.sink.operations:
        assert not [name for name in span.attributes if name.startswith("torchdist.device")]


def test_what_a_device_never_came_to_is_no_error(rank: Rank) -> None:
    """Of operations in the device's queue at the end only the one that it had begun was in progress."""
    begun = rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.enter(Flag.ON_DEVICE)
    rank.tape.pass_s(0.5)
    rank.tape.writer.mark(begun, Word.STARTED, 1, How.EVENT)
    rank.close()
    errors = [span.error for span in rank.sink.operations]
    assert errors == ["all_reduce was still in progress when the process was gone", None]
    [in_progress, _] = rank.sink.operations
    assert semconv.DEVICE_DURATION not in in_progress.attributes


def test_a_step_without_operations_still_shows(rank: Rank) -> None:
    """Its end was recorded, so it gets an anchor; time that passes without anything gets none."""
    rank.tape.pass_s(2)
    rank.tape.end_step()
    rank.tape.pass_s(200)
    rank.close()
    assert [anchor.attributes[semconv.STEP] for anchor in rank.sink.anchors] == [0]


def test_steps_whose_ends_were_lost_are_passed_over(make_tape: Callable[..., RankTape]) -> None:
    """A reader that was lapped goes on with the steps that it still finds, each in its own trace."""
    tape = make_tape(capacity=64)
    tape.agree()
    rank = Rank(tape)
    tape.operation()
    rank.poll()
    for _ in range(200):
        tape.operation()
        tape.end_step()
    rank.poll()
    rank.close()
    steps = [int(str(anchor.attributes[semconv.STEP])) for anchor in rank.sink.anchors]
    assert steps[0] == 0
    assert steps[-1] == 199
    assert steps == sorted(set(steps))
    for anchor in rank.sink.anchors[2:]:
        assert [span.attributes[semconv.STEP] for span in rank.sink.under(anchor)] == [anchor.attributes[semconv.STEP]]


def test_the_wall_clock_is_followed_only_when_it_was_set(rank: Rank) -> None:
    """Jitter between clock pairs does not move spans; a clock that was set does."""
    starts: list[int] = []
    for jump_ns in (0, 40_000_000, 3_600 * SECOND):
        rank.tape.wall_offset_ns = WALL_OFFSET_NS + jump_ns
        number = rank.tape.operation()
        rank.tape.end_step()
        rank.poll()
        span = rank.sink.operations[-1]
        assert span.span_id == operation_span_id(rank.tape.reader.identity.nonce, number)
        starts.append(span.end_ns - rank.tape.now_ns - WALL_OFFSET_NS)
    assert starts == [0, 0, 3_600 * SECOND]


def test_only_what_is_sampled_leaves_and_incidents_always_do(tape: RankTape) -> None:
    """With a sampler that takes nothing, a stall still shows its step, and a kept step shows."""
    rank = Rank(tape, ALWAYS_OFF)
    for step in range(3):
        tape.operation()
        if step == 1:
            rank.spans.keep(1)
        tape.end_step()
        rank.poll()
    assert [anchor.attributes[semconv.STEP] for anchor in rank.sink.anchors] == [1]
    hanging = tape.enter(Flag.ASYNC)
    tape.end_step()
    rank.poll()
    rank.spans.stalled(hanging)
    tape.pass_s(1)
    tape.end(hanging, How.POLL)
    tape.end_step()
    rank.poll()
    assert rank.sink.operations[-1].attributes[semconv.STALLED] is True


def test_anchors_are_linked_to_the_caller_of_the_job(tape: RankTape) -> None:
    """What TRACEPARENT names is a link on every anchor, beside the link to the segment before."""
    caller = LinkTarget(5, 6)
    rank = Rank(tape, links=(caller,))
    tape.operation()
    rank.poll()
    first = rank.spans.end_segment(tape.now_ns)
    tape.pass_s(1)
    tape.end_step()
    rank.poll()
    assert [anchor.links for anchor in rank.sink.anchors] == [(caller,), (first, caller)]
