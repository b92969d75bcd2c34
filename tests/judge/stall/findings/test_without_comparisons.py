"""Findings in jobs whose calls are not compared (`OTEL_PYTHON_TORCHDIST_COMPARE_CALLS=false`)."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.model.rank_state.occupations import FailedCheckpoint, RankCheckpoints
from otel_torchdist.model.reports.finding import Finding, FindingKind
from tests.support.worlds.detectors import EVERYBODY, RULES, Watching
from tests.support.worlds.fake_world import START_NS, FakeWorld


@pytest.mark.parametrize("compares_calls", [True, False])
def test_only_comparisons_are_left_out(compares_calls: bool) -> None:
    """Without comparisons a silent mismatch is not reported, but a checkpoint that could not be saved is."""
    world = FakeWorld(4)
    failed = FailedCheckpoint(5, "save", "/ckpt/1", "write_data", "OSError", "no space", 7, START_NS, True)
    world.ranks[1].checkpoints = RankCheckpoints(failed=(failed,))
    watching = Watching(world)
    watching.detector = Detector(dataclasses.replace(RULES, compares_calls=compares_calls), START_NS)
    for second in range(40):
        for rank in world.ranks:
            reduce_op = "max" if second == 5 and rank.rank == 2 else "sum"
            number = rank.enter(EVERYBODY, float(second), reduce_op=reduce_op)
            rank.end(number, second + 0.001)
        watching.until(second + 1.0)
    found = {event.kind for _, event in watching.events if isinstance(event, Finding)}
    compared = {FindingKind.MISMATCHED} if compares_calls else set()
    assert found == {FindingKind.CHECKPOINT_FAILED} | compared
