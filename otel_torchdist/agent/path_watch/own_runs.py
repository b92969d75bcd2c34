"""Selects the runs whose critical path this agent measures, and the tapes that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from otel_torchdist.agent.path_watch.watch import RunToWatch
from otel_torchdist.judge.stall.events import RunSeen
from otel_torchdist.model.text import MemberRank


def own_tapes(runs: Sequence[RunSeen], paths: Mapping[int, Path]) -> dict[int, tuple[Path, ...]]:
    """Return the tapes that this agent reads, by run, except tapes of processes beside the run's ranks.

    Args:
        runs: The runs, as of the last pass.
        paths: The tapes, by nonce.
    """
    return {
        run.world.run: tuple(
            paths[view.nonce]
            for view in run.world.in_order
            if view.nonce in paths and not isinstance(view.rank, MemberRank)
        )
        for run in runs
        if run.world.run and not run.world.is_foreign
    }


def runs_to_watch(runs: Sequence[RunSeen], tapes: Mapping[int, tuple[Path, ...]]) -> list[RunToWatch]:
    """Return the runs that this agent judges: without another judge, it judges a run."""
    return [
        RunToWatch(min(run.world.ranks), run.world, tapes[run.world.run])
        for run in runs
        if run.judge is None and run.world.run in tapes
    ]
