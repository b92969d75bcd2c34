"""The worlds of finished jobs, and what a judge finds in their values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from otel_torchdist.judge.stall.findings.diverged import Diverged
from otel_torchdist.judge.stall.findings.non_finite import NonFinite
from otel_torchdist.judge.stall.findings.watch import ValueFinder
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.launch.jobs import Job


def world_of(tapes: Iterable[Path]) -> WorldSnapshot:
    """What is known at the end of a run, from the tapes of its ranks."""
    views: dict[int, RankView] = {}
    for path in tapes:
        reader = TapeReader(path)
        follower = TapeFollower(reader)
        for batch in reader.poll_to_end():
            follower.observe(batch)
        view = follower.view(reader.status().monotonic_ns)
        assert view is not None
        views[view.rank] = view
        reader.close()
    now_ns = max(view.heartbeat_ns for view in views.values())
    return WorldSnapshot(1, now_ns, views)


def world_of_job(job: Job) -> WorldSnapshot:
    """Return the world of a finished job, from the tapes of its ranks."""
    return world_of(tape.path for tape in job.tapes)


def findings_of(job: Job) -> list[NonFinite | Diverged]:
    """The findings of a judge at the end of a job."""
    return findings_in(world_of_job(job))


def findings_in(world: WorldSnapshot) -> list[NonFinite | Diverged]:
    """The findings of a judge at the end of a run."""
    return ValueFinder().find(world, is_last=True)
