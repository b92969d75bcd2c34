"""From the records of a real tape to finished spans by step: segments, times and links, and what is sampled."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_torchdist.model.ids import operation_span_id, trace_id_of_step
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.telemetry import semconv
from tests.support.tapes.fake_tape import RUN, RUN_ID, SECOND, WALL_OFFSET_NS, ClockedTape
from tests.telemetry.spanned_rank import Rank, group_key


def test_a_step_is_one_anchor_with_its_operations(rank: Rank) -> None:
    """A step is emitted when it has ended: anchor first, its operations inside its time, all in the step's trace."""
    first, second = rank.tape.operation(0.5), rank.tape.operation(0.25)
    rank.poll()
    assert rank.sink.spans == []
    rank.tape.pass_s(0.25)
    rank.end_step()

    anchor, *operations = rank.sink.spans
    assert (anchor.name, anchor.parent_id, anchor.error, anchor.links) == ("step (rank 2)", None, None, ())
    assert anchor.trace_id == trace_id_of_step(RUN_ID, 0)
    assert anchor.start_ns == 1_000 * SECOND + WALL_OFFSET_NS
    assert anchor.end_ns == anchor.start_ns + SECOND
    assert anchor.attributes == {
        semconv.RANK: 2,
        semconv.WORLD_SIZE: 4,
        semconv.RUN: RUN,
        semconv.STEP: 0,
        semconv.STEP_SEGMENT: 0,
        semconv.STEP_SEGMENT_END: "step",
        semconv.HOST_NAME: "node-1",
        semconv.PROCESS_PID: rank.tape.reader.identity.pid,
        semconv.GROUP_RANKS: [f"{group_key(rank)}: 0-3"],
    }
    nonce = rank.tape.reader.identity.nonce
    assert [span.span_id for span in operations] == [operation_span_id(nonce, number) for number in (first, second)]
    assert {span.parent_id for span in operations} == {anchor.span_id}
    assert [(span.start_ns - anchor.start_ns, span.end_ns - anchor.start_ns) for span in operations] == [
        (0, SECOND // 2),
        (SECOND // 2, SECOND * 3 // 4),
    ]


def test_segments_end_after_thirty_seconds_and_are_linked(rank: Rank) -> None:
    """A long step is exported piece by piece; pieces without an operation are left out; the last shows its end."""
    rank.tape.operation(10)
    rank.tape.pass_s(70)
    rank.poll()
    rank.tape.operation(5)
    rank.poll()
    rank.tape.pass_s(25)
    rank.end_step()

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
    """It starts before its anchor, names the step in which it was entered, and delays nothing."""
    number = rank.tape.enter(Flag.ASYNC)
    rank.tape.pass_s(1)
    rank.end_step()
    assert [span.name for span in rank.sink.spans] == ["step (rank 2)"]
    rank.tape.pass_s(1)
    rank.tape.end(number, How.POLL)
    [span] = rank.end_step()
    assert span.trace_id == trace_id_of_step(RUN_ID, 1)
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
    rank.end_step()
    steps = [(anchor.attributes[semconv.STEP], len(rank.sink.under(anchor))) for anchor in rank.sink.anchors]
    assert steps == [(0, 1), (1, 1)]


def test_a_stall_ends_the_segment_at_once(rank: Rank) -> None:
    """The anchor is emitted early, as a parent for markers; the hung operation is shown once, at its end."""
    rank.tape.operation(1)
    hanging = rank.tape.enter()
    rank.tape.pass_s(12)
    rank.poll()
    incident = LinkTarget(77, 88)
    anchor = rank.spans.end_segment(rank.tape.now_ns, incident)
    target = rank.spans.mark_stalled(hanging, incident)
    first, second = rank.sink.groups
    assert (len(first[0]), first[1], second[1]) == (1, True, False)
    assert anchor == LinkTarget(first[0][0].trace_id, first[0][0].span_id)
    assert first[0][0].attributes[semconv.STEP_SEGMENT_END] == "stall"
    assert first[0][0].links == (incident,)

    assert rank.spans.end_segment(rank.tape.now_ns) == anchor, "nothing has ended since: no second anchor"
    rank.tape.pass_s(20)
    rank.tape.end(hanging)
    rank.end_step()
    last = rank.sink.operations[-1]
    assert LinkTarget(last.trace_id, last.span_id) == target
    assert last.attributes[semconv.STALLED] is True
    assert last.links == (incident,)
    assert last.end_ns - last.start_ns == 32 * SECOND
    assert [len(rank.sink.under(anchor)) for anchor in rank.sink.anchors] == [1, 1]
    assert rank.sink.anchors[1].links == (anchor,)


def test_a_segment_is_bounded(rank: Rank) -> None:
    """More operations than fit into one segment are emitted early, in segments of their own, and none is lost."""
    for _ in range(3):
        for _ in range(1_500):
            rank.tape.operation(0.000_01)
        rank.poll()
    assert len(rank.sink.operations) == 4_000
    rank.end_step()
    assert len(rank.sink.operations) == 4_500
    assert [anchor.attributes[semconv.STEP_SEGMENT_END] for anchor in rank.sink.anchors] == ["size", "size", "step"]


def test_a_step_without_operations_still_shows(rank: Rank) -> None:
    """Its end was recorded, so it gets an anchor; time without any activity gets none."""
    rank.tape.pass_s(2)
    rank.tape.end_step()
    rank.tape.pass_s(200)
    rank.close()
    assert [anchor.attributes[semconv.STEP] for anchor in rank.sink.anchors] == [0]


def test_steps_whose_ends_were_lost_are_passed_over(make_tape: Callable[..., ClockedTape]) -> None:
    """A reader that was lapped continues with the steps that it still finds, each in its own trace."""
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
        rank.end_step()
        span = rank.sink.operations[-1]
        assert span.span_id == operation_span_id(rank.tape.reader.identity.nonce, number)
        starts.append(span.end_ns - rank.tape.now_ns - WALL_OFFSET_NS)
    assert starts == [0, 0, 3_600 * SECOND]


def test_only_what_is_sampled_leaves_and_incidents_always_do(tape: ClockedTape) -> None:
    """With a sampler that keeps nothing, a stall still shows its step, and a kept step shows."""
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
    rank.spans.mark_stalled(hanging)
    tape.pass_s(1)
    tape.end(hanging, How.POLL)
    tape.end_step()
    rank.poll()
    assert rank.sink.operations[-1].attributes[semconv.STALLED] is True


def test_anchors_are_linked_to_the_caller_of_the_job(tape: ClockedTape) -> None:
    """The TRACEPARENT is a link on every anchor, beside the link to the segment before."""
    caller = LinkTarget(5, 6)
    rank = Rank(tape, links=(caller,))
    tape.operation()
    rank.poll()
    first = rank.spans.end_segment(tape.now_ns)
    tape.pass_s(1)
    tape.end_step()
    rank.poll()
    assert [anchor.links for anchor in rank.sink.anchors] == [(caller,), (first, caller)]
