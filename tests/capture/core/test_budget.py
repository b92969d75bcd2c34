"""When a rank records less: how its own time is compared with the budget."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from otel_torchdist.capture.core import budget
from otel_torchdist.capture.core.budget import MIN_STEP_NS, WINDOW_NS, WINDOWS_OVER, OverheadBudget
from otel_torchdist.model.recording_level import RecordingLevel
from tests.support.tapes.own_tape import OwnTape

WINDOW_STEPS = 10


class Rank(OwnTape):
    """A rank whose clock and own time a test sets."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, checks_values: bool = True) -> None:
        super().__init__(directory)
        self.now_ns = 1
        self.has_steps = True
        self.levels: list[RecordingLevel] = []
        monkeypatch.setattr(budget.time, "monotonic_ns", lambda: self.now_ns)
        self.budget = OverheadBudget(1.0, lambda: self.has_steps, checks_values, self.levels.append)
        self.budget.begins(self.recorder)

    def windows(self, number: int, percent: float, steps: int = WINDOW_STEPS) -> RecordingLevel:
        """Let windows pass in which our code takes a share of the time; returns the level on the tape."""
        for _ in range(number):
            self.now_ns += WINDOW_NS
            self.recorder.step += steps
            self.recorder.tape.add_overhead(round(WINDOW_NS * percent / 100), 1)
            self.budget.beat(self.recorder)
        return RecordingLevel(self.reader.status().recording_level)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    """A rank that checks values, recorded in Python."""
    return Rank(tmp_path, monkeypatch)


def test_levels_in_order(rank: Rank, caplog: pytest.LogCaptureFixture) -> None:
    """Each level takes three windows over the budget. The log has one line, the tape the level before it applies."""
    assert rank.windows(WINDOWS_OVER - 1, 2.0) is RecordingLevel.EVERYTHING
    assert rank.windows(1, 2.0) is RecordingLevel.NO_VALUES
    assert rank.levels == [RecordingLevel.EVERYTHING]
    assert rank.windows(WINDOWS_OVER, 2.0) is RecordingLevel.NO_INTERVALS
    assert rank.windows(10 * WINDOWS_OVER, 2.0) is RecordingLevel.NO_CALL_SITES
    assert rank.levels == list(RecordingLevel)
    [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "took 2% of the last steps of rank 0" in line.getMessage()


def test_within_the_budget(rank: Rank) -> None:
    """Nothing is reduced within the budget, nor after windows that are not consecutive, and a level does not fall."""
    for _ in range(5):
        rank.windows(WINDOWS_OVER - 1, 50.0)
        assert rank.windows(1, 0.9) is RecordingLevel.EVERYTHING
    rank.windows(WINDOWS_OVER, 50.0)
    assert rank.windows(100, 0.0) is RecordingLevel.NO_VALUES


def test_only_steps_of_a_program(rank: Rank) -> None:
    """Nothing is reduced without steps of the program, if no step ends, or if steps are as short as a toy's."""
    rank.has_steps = False
    assert rank.windows(10, 90.0) is RecordingLevel.EVERYTHING
    rank.has_steps = True
    assert rank.windows(10, 90.0, steps=0) is RecordingLevel.EVERYTHING
    assert rank.windows(10, 90.0, steps=WINDOW_NS // MIN_STEP_NS + 1) is RecordingLevel.EVERYTHING
    assert rank.windows(WINDOWS_OVER, 90.0, steps=WINDOW_NS // MIN_STEP_NS) is RecordingLevel.NO_VALUES


def test_level_that_saves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that checks no values leaves out intervals first."""
    rank = Rank(tmp_path, monkeypatch, checks_values=False)
    assert rank.windows(WINDOWS_OVER, 90.0) is RecordingLevel.NO_INTERVALS
