"""The spans of activities, beneath the segment of their rank's step."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_torchdist.model.ids import activity_span_id, trace_id_of_step
from otel_torchdist.model.kinds import ActivityKind, How, TapeState
from otel_torchdist.tape.reading.batch import TapeCursor
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.segments import MAX_ACTIVITIES, MAX_OPERATIONS
from otel_torchdist.telemetry.spans.steps import SpansState
from tests.support.tapes.fake_tape import RUN, RUN_ID, SECOND, ClockedTape
from tests.telemetry.spanned_rank import Rank


@pytest.fixture
def other(make_tape: Callable[..., ClockedTape]) -> Rank:
    """Another rank 2 of 4."""
    tape = make_tape()
    tape.agree()
    return Rank(tape)


def test_under_the_step(rank: Rank) -> None:
    """An activity is a child of the step's anchor, at its own time, with few attributes and no error."""
    rank.tape.operation(0.5)
    number = rank.tape.activity(0.25, "Adam")
    rank.end_step()
    anchor, _, span = rank.sink.spans
    assert (span.name, span.parent_id, span.error, span.links) == ("optimizer step", anchor.span_id, None, ())
    assert span.trace_id == trace_id_of_step(RUN_ID, 0)
    assert span.span_id == activity_span_id(rank.tape.reader.identity.nonce, number)
    assert (span.start_ns - anchor.start_ns, span.end_ns - anchor.start_ns) == (SECOND // 2, 3 * SECOND // 4)
    assert span.attributes == {
        semconv.RANK: 2,
        semconv.RUN: RUN,
        semconv.STEP: 0,
        semconv.OPTIMIZER: "Adam",
        semconv.COMPLETION: "call",
    }


@pytest.mark.parametrize(
    ("kind", "detail", "name", "attributes"),
    [
        (ActivityKind.DATA_WAIT, "ImageFolder", "data wait", {semconv.DATASET: "ImageFolder"}),
        (ActivityKind.DATA_WAIT, "", "data wait", {}),
        (ActivityKind.BACKWARD, "", "backward", {}),
    ],
)
def test_parts_of_a_step(rank: Rank, kind: ActivityKind, detail: str, name: str, attributes: dict[str, str]) -> None:
    """Each kind has its name, and the attribute that tells two of them apart."""
    rank.tape.end_activity(rank.tape.begin_activity(detail, kind))
    rank.end_step()
    _, span = rank.sink.spans
    assert span.name == name
    assert attributes.items() <= span.attributes.items()


@pytest.mark.parametrize(
    ("how", "failure", "completion", "error"),
    [
        (How.ABANDONED, "", "abandoned", "optimizer step was left with an exception, at the end shown or before it"),
        (How.FAILED, "ValueError", "failed", "optimizer step raised ValueError"),
        (How.FAILED, "", "failed", "optimizer step raised _OTHER"),
    ],
)
def test_with_an_exception(rank: Rank, how: How, failure: str, completion: str, error: str) -> None:
    """How it ended is an error status, and an attribute; the exception's type is OpenTelemetry's `error.type`."""
    rank.tape.end_activity(rank.tape.begin_activity(), how, failure)
    [span] = rank.end_step()
    assert (span.error, span.attributes[semconv.COMPLETION]) == (error, completion)
    expected = (failure or "_OTHER") if how is How.FAILED else None
    assert span.attributes.get(semconv.ERROR_TYPE) == expected


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (TapeState.RUNNING, "optimizer step was still in progress when the process was gone"),
        (TapeState.FINISHED, "optimizer step was still in progress when the process ended"),
    ],
)
def test_open_when_the_process_ends(rank: Rank, state: TapeState, error: str) -> None:
    """An activity in which a rank dies is shown up to that moment, even if nothing else is in the step."""
    rank.tape.end_step()
    rank.tape.pass_s(1)
    rank.tape.begin_activity("SGD")
    rank.tape.pass_s(2)
    rank.tape.writer.finish(state)
    rank.close()
    *_, anchor, span = rank.sink.spans
    assert (span.parent_id, span.attributes[semconv.COMPLETION], span.error) == (anchor.span_id, "unknown", error)
    assert span.end_ns - span.start_ns == 2 * SECOND
    assert anchor.attributes[semconv.STEP_SEGMENT_END] == "close"


def test_spans_of_everything_else_are_the_same(rank: Rank, other: Rank) -> None:
    """Activities move no segment's border, neither by their time nor by their number: the other spans stay the same."""
    for one, with_activities in ((rank, True), (other, False)):
        tape = one.tape
        for _ in range(MAX_OPERATIONS):
            tape.operation(0.001)
        around = tape.begin_activity() if with_activities else 0
        tape.pass_s(40)
        if with_activities:
            tape.activity(0)
        tape.pass_s(40)
        one.poll()
        tape.operation(0.5)
        if with_activities:
            tape.end_activity(around)
        else:
            tape.pass_s(0)
        tape.end_step()
        one.poll()
    names = [span.name for span in rank.sink.spans if span.name != "optimizer step"]
    assert names == [span.name for span in other.sink.spans]
    ours, plain = rank.sink.anchors, other.sink.anchors
    assert [anchor.attributes[semconv.STEP_SEGMENT_END] for anchor in ours] == [
        anchor.attributes[semconv.STEP_SEGMENT_END] for anchor in plain
    ]
    assert len(rank.sink.spans) == len(other.sink.spans) + 2


def test_left_out_with_its_step(rank: Rank) -> None:
    """Of a step that is not sampled nothing is shown, activities included; of one with an incident, everything."""
    unsampled = Rank(rank.tape, ALWAYS_OFF)
    rank.tape.activity()
    rank.tape.end_step()
    unsampled.poll()
    assert unsampled.sink.spans == []
    rank.tape.activity()
    unsampled.spans.keep(1)
    rank.tape.end_step()
    unsampled.poll()
    assert [span.name for span in unsampled.sink.spans] == ["step (rank 2)", "optimizer step"]


def test_across_a_stall(rank: Rank) -> None:
    """An activity during which a stall cuts the step is a child of the segment in which it ends."""
    number = rank.tape.begin_activity()
    stuck = rank.tape.enter()
    rank.tape.pass_s(11)
    rank.poll()
    rank.spans.end_segment(rank.tape.now_ns)
    rank.tape.pass_s(1)
    rank.tape.end(stuck)
    rank.tape.end_activity(number)
    rank.end_step()
    first, second = rank.sink.anchors
    assert [span.name for span in rank.sink.under(first)] == []
    assert [span.name for span in rank.sink.under(second)] == ["all_reduce", "optimizer step"]


def test_another_reader_continues(rank: Rank) -> None:
    """What had ended and was not handed over, and what was open, is handed over once by the next reader."""
    tape = rank.tape
    tape.activity()
    open_number = tape.begin_activity()
    rank.poll()
    stored = msgspec.msgpack.encode((rank.spans.state, tape.reader.cursor))  # as in an agent's checkpoint
    state, cursor = msgspec.msgpack.decode(stored, type=tuple[SpansState, TapeCursor])
    tape.end_activity(open_number)
    tape.end_step()

    tape.reader = TapeReader.of_writer(tape.writer)
    successor = Rank(tape)
    past = tape.reader.another().read_before(cursor)
    tape.reader.resume(cursor)
    successor.spans.resume(state, [*past.ended, *past.activities_ended])
    successor.poll()
    nonce = tape.reader.identity.nonce
    shown = {span.span_id for span in rank.sink.operations + successor.sink.operations}
    assert shown == {activity_span_id(nonce, number) for number in tape.activities}
    assert len(successor.sink.operations) == 2


def test_bounded(rank: Rank) -> None:
    """A tape with nothing but activities is shown in pieces: only so many wait for the end of their step."""
    for _ in range(MAX_ACTIVITIES + 2):
        rank.tape.activity(0.001)
    rank.poll()
    [anchor] = rank.sink.anchors
    assert anchor.attributes[semconv.STEP_SEGMENT_END] == "size"
    assert len(rank.sink.under(anchor)) == MAX_ACTIVITIES + 1
