"""Spans wait for the id of their run: for how long, how many, and for what they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from otel_torchdist.model.ids import lone_run_id, trace_id_of_step
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.spans.steps import MAX_HELD_SPANS
from tests.support.tapes.fake_tape import RUN_ID, ClockedTape
from tests.telemetry.spanned_rank import Rank


def test_a_stall_does_not_wait_for_the_run_id(make_tape: Callable[..., ClockedTape]) -> None:
    """A hang in the first collective keeps ranks from agreeing: the provisional id is good enough for its evidence."""
    tape = make_tape()
    tape.agree(RunIdState.PROVISIONAL)
    rank = Rank(tape)
    tape.enter()
    tape.pass_s(11)
    rank.poll()
    assert rank.sink.spans == []
    anchor = rank.spans.end_segment(tape.now_ns)
    assert anchor.trace_id == trace_id_of_step(RUN_ID, 0)
    assert [span.span_id for span in rank.sink.spans] == [anchor.span_id]


def test_nothing_leaves_before_the_run_id_is_settled(make_tape: Callable[..., ClockedTape]) -> None:
    """Spans wait for AGREED or UNAGREED and then leave under that id, not under the provisional one."""
    tape = make_tape()
    tape.agree(RunIdState.PROVISIONAL, run_id=99)
    rank = Rank(tape)
    for _ in range(2):
        tape.operation()
        rank.end_step()
    assert rank.sink.spans == []
    tape.agree()
    rank.poll()
    assert [span.trace_id for span in rank.sink.anchors] == [trace_id_of_step(RUN_ID, step) for step in (0, 1)]


@pytest.mark.parametrize("ends_early", [False, True])
def test_waiting_for_the_run_id_has_an_end(make_tape: Callable[..., ClockedTape], ends_early: bool) -> None:
    """After 30 s, or when the tape is over, spans leave under an id of the tape's own."""
    tape = make_tape()
    rank = Rank(tape)
    tape.operation()
    rank.end_step()
    assert rank.sink.spans == []
    if ends_early:
        rank.close()
    else:
        tape.pass_s(30)
        rank.poll()
    assert [span.trace_id for span in rank.sink.anchors] == [
        trace_id_of_step(lone_run_id(tape.reader.identity.nonce), 0)
    ]


def test_what_waits_for_the_run_id_is_bounded_and_counted(make_tape: Callable[..., ClockedTape]) -> None:
    """The oldest segments are dropped as a whole, and every dropped span is counted."""
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
