"""What became of ranks, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.agent.lives import Life
from otel_torchdist.stall.world import RankView, life_in
from otel_torchdist.telemetry.rank_ranges import name_ranks

_FATES: Final = {
    Life.RUNNING: ("runs", "run"),
    Life.FINISHED: ("has finished", "have finished"),
    Life.FAILED: ("has failed", "have failed"),
    Life.DEAD: ("is dead: its process is gone without a word", "are dead: their processes are gone without a word"),
}


def fates(views: Iterable[RankView]) -> list[str]:
    """A clause for all ranks that share a fate: `ranks 0-2 have failed with RuntimeError`."""
    crowds: dict[tuple[Life, str], list[int]] = {}
    for view in views:
        crowds.setdefault((life_in(view), view.failure), []).append(view.rank)
    return [
        f"{name_ranks(sorted(ranks))} {_FATES[life][len(ranks) > 1]}{f' with {failure}' if failure else ''}"
        for (life, failure), ranks in crowds.items()
    ]
