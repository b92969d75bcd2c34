"""Whatever happens on a tape, its spans keep the rules. `MemorySink` checks ids and parents as they arrive."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from otel_torchdist.model.ids import activity_span_id, operation_span_id
from otel_torchdist.model.kinds import How, RunIdState, TapeState
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.fake_tape import SECOND, ClockedTape

ACTIONS = st.one_of(
    st.just("enter"),
    st.just("end oldest"),
    st.just("end newest"),
    st.just("end step"),
    st.just("begin activity"),
    st.just("end activity"),
    st.just("stall"),
    st.just("agree"),
    st.tuples(st.just("pass"), st.sampled_from([0.0, 0.001, 1.0, 12.0, 31.0, 400.0])),
    st.tuples(st.just("poll"), st.sampled_from([1, 3, 1_000])),
)


def act(tape: ClockedTape, spans: RankSpans, action: str, value: float) -> None:
    """Do one thing to the tape or to the spans."""
    if action == "enter":
        tape.enter()
    elif action == "end oldest" and tape.open:
        tape.end(tape.open[0], How.POLL)
    elif action == "end newest" and tape.open:
        tape.end(tape.open[-1], How.WAIT)
    elif action == "begin activity":
        tape.begin_activity()
    elif action == "end activity" and tape.activities:
        tape.end_activity(max(tape.activities))  # again and again: only the first time counts
    elif action == "end step":
        tape.end_step()
    elif action == "stall":
        spans.end_segment(tape.now_ns)
    elif action == "agree":
        tape.agree(RunIdState.AGREED)
    elif action == "pass":
        tape.pass_s(value)
    elif action == "poll":
        spans.consume(tape.reader.poll(int(value)), tape.status(), tape.now_ns)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(ACTIONS, max_size=60),
    st.sampled_from([(TapeState.RUNNING, 1), (TapeState.FINISHED, 1_000), (TapeState.FAILED, 7)]),
    st.sampled_from([0, 1, 40]),
)
def test_every_operation_is_one_span_under_an_anchor_of_its_time(
    actions: list[str | tuple[str, float]], ending: tuple[TapeState, int], late_s: int
) -> None:
    """Any order of operations, activities, steps, stalls, pauses and partial polls, and an end not exactly known.

    Each operation and activity gives exactly one span, under the id known beforehand, that ends no later than its
    anchor. Anchors of a rank never overlap, and their steps come in order.
    """
    state, limit = ending
    with tempfile.TemporaryDirectory() as directory:
        tape = ClockedTape(Path(directory))
        sink = MemorySink()
        sampler = StepSampler(ALWAYS_ON, 1_000_000, rank=2, world_size=4)
        spans = RankSpans(tape.reader, sink, sampler)
        for action in actions:
            act(tape, spans, *((action, 0.0) if isinstance(action, str) else action))
        tape.writer.finish(state)
        for _ in range(200):  # in as many polls as it takes
            batch = tape.reader.poll(limit)
            spans.consume(batch, tape.status(), tape.now_ns)
        spans.close(tape.now_ns - late_s * SECOND)

        nonce = tape.reader.identity.nonce
        shown = sorted(span.span_id for span in sink.operations)
        operations = [operation_span_id(nonce, number) for number in tape.numbers]
        assert shown == sorted(operations + [activity_span_id(nonce, number) for number in tape.activities])
        for before, after in zip(sink.anchors, sink.anchors[1:], strict=False):
            assert before.end_ns <= after.start_ns + 1_000
        steps = [int(str(anchor.attributes[semconv.STEP])) for anchor in sink.anchors]
        assert steps == sorted(steps)
        for anchor in sink.anchors:
            for span in sink.under(anchor):
                assert span.end_ns <= anchor.end_ns + 1_000
        tape.writer.close()
