"""Ranks started by rank 0, as with some launchers: they are no helper processes, so their ends count."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest

from otel_torchdist.judge.world.assembly import mark_ended_helpers
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.snapshot import life_in
from otel_torchdist.node.job.runs.lives import is_helper
from tests.support.tapes.fake_tape import RUN_ID, FakeTape
from tests.support.worlds.detectors import stalled


@pytest.mark.parametrize(
    ("run", "life"),
    [(RUN_ID, RankLife.DEAD), (RUN_ID + 1, RankLife.FINISHED), (0, RankLife.FINISHED)],
    ids=["the same run", "another run", "a run that is not known yet"],
)
def test_process_that_a_rank_has_started(tmp_path: Path, run: int, life: RankLife) -> None:
    """A rank started by another rank of the same run, and killed before that rank ended, has died."""
    world, numbers = stalled(late=1)
    world.ranks[1].is_seen_to_die(6.0, signal.SIGKILL)
    world.ranks[0].end(numbers[0], 6.1, How.FAILED, "RuntimeError")
    world.ranks[0].die(6.2, TapeState.FAILED, "RuntimeError")
    starter = FakeTape(tmp_path, 0)
    started = FakeTape(tmp_path, 1, run_id=run, parent=starter.reader.identity.nonce)
    views = [
        dataclasses.replace(world.ranks[rank].view(7.0), nonce=tape.reader.identity.nonce, run=of)
        for rank, (tape, of) in enumerate([(starter, RUN_ID), (started, run)])
    ]
    seen = mark_ended_helpers(
        [(tape.reader.identity, view) for tape, view in zip([starter, started], views, strict=True)]
    )
    assert [life_in(view) for view in seen] == [RankLife.FAILED, life]
    tapes = [starter.reader, started.reader]
    assert [is_helper(tape, tapes) for tape in tapes] == [False, life is RankLife.FINISHED]
