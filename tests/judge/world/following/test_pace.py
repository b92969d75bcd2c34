"""The pace of calls on a rank's tape."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.judge.world.following.baselines import FIRST_CALLS, PaceLog
from otel_torchdist.model.kinds import How
from otel_torchdist.model.rank_state.occupations import CallPace
from tests.support.tapes.fake_tape import SECOND, FakeTape


@pytest.mark.parametrize("polls_each", [True, False])
def test_longest_gap(tmp_path: Path, polls_each: bool) -> None:
    """The longest gap between two calls is the same, read call by call or at once. Time inside a call is no gap."""
    tape, pace = FakeTape(tmp_path), PaceLog()

    def read() -> None:
        if polls_each:
            pace.observe(tape.reader.poll())

    starts_s = [10, *range(100, 100 + FIRST_CALLS), 200]  # a start that takes 90 s, and a gap of 84 s
    for at_s in starts_s:
        number = tape.begin(at=at_s * SECOND)
        read()
        tape.writer.complete(number, at_s * SECOND, at_s * SECOND + SECOND // 2, How.CALL)
        read()
    long = tape.begin(at=201 * SECOND)
    read()
    tape.writer.complete(long, 201 * SECOND, 400 * SECOND, How.CALL)
    read()
    tape.begin(at=401 * SECOND)
    pace.observe(tape.reader.poll())
    gap_ns = (200 - (99 + FIRST_CALLS)) * SECOND - SECOND // 2
    assert pace.shown(None) == CallPace(401 * SECOND, gap_ns)


def test_steps_count(tmp_path: Path) -> None:
    """The end of a step counts as progress like a call."""
    tape, pace = FakeTape(tmp_path), PaceLog()
    tape.begin(at=10 * SECOND)
    tape.writer.step_ended(1, 20 * SECOND, 1)
    pace.observe(tape.reader.poll())
    assert pace.shown(0.5) == CallPace(20 * SECOND, 0, 0.5)
