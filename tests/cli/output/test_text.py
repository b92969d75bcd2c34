"""Clauses that several commands print."""

from __future__ import annotations

from otel_torchdist.cli.output.text import fates
from otel_torchdist.model.kinds import TapeState
from tests.support.worlds.fake_world import FakeWorld


def test_fates() -> None:
    """Ranks that share a fate are named together, and an error code is stated."""
    world = FakeWorld(6)
    world.ranks[1].is_seen_to_die(1.0, 3 << 8, TapeState.FINISHED)
    for rank in (2, 3):
        world.ranks[rank].is_seen_to_die(1.0, 1 << 8, TapeState.FAILED, "RuntimeError")
    world.ranks[4].is_seen_to_die(1.0, 9)
    world.ranks[5].is_seen_to_die(1.0, 0, TapeState.FINISHED)
    assert fates(rank.view(2.0) for rank in world.ranks) == [
        "rank 0 is running",
        "rank 1 has failed with exit code 3",
        "ranks 2-3 have failed with RuntimeError",
        "rank 4 was killed by SIGKILL",
        "rank 5 has finished",
    ]
