"""A rank that only ended after another one is not shown like the one that was first."""

from __future__ import annotations

from otel_torchdist.stall.reporting.spans import incident_spans
from tests.support.worlds.detectors import Watching
from tests.verdict.test_first_death import KILL, busy, end_others


def test_bars_of_a_stall() -> None:
    """In the trace of a stall, the first bar says `dead`, and those of the ranks that the launcher ended `followed`."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    world.ranks[2].is_seen_to_die(6.02, KILL)
    end_others(world, 6.14)
    watching.until(9.0)
    ((_, given),) = watching.verdicts
    _, *bars = incident_spans(given)
    assert [bar.name for bar in bars] == ["rank 2: dead", "rank 0: followed", "rank 1: followed", "rank 3: followed"]
