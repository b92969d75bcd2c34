"""Assigns tapes to runs, and takes a snapshot of each run.

Ranks of an earlier attempt of the job are left out. A helper is a process that a rank started and that created a group
of its own, such as the checkpoint process of `async_save`. It is terminated silently when its rank ends; that does not
count as a death unless the helper was waiting for something.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from otel_torchdist.job.ancestry import has_outlived_parent
from otel_torchdist.naming import run_id_of_claim
from otel_torchdist.tape.layout import TapeState
from otel_torchdist.tape.records import TapeIdentity
from otel_torchdist.world.follower import TapeFollower
from otel_torchdist.world.model import RankView, WorldSnapshot


def worlds(followers: Iterable[TapeFollower], now_ns: int) -> list[WorldSnapshot]:
    """The snapshots of all runs that the tapes belong to, each with its local ranks."""
    read = [(follower, view) for follower in followers if (view := _view_of(follower, now_ns)) is not None]
    views = settled([(follower.reader.identity, view) for follower, view in read])
    seen = [(follower, view) for (follower, _), view in zip(read, views, strict=True)]
    found: dict[_Source, list[RankView]] = {}
    for follower, view in seen:
        if view.run:
            found.setdefault(_Source(follower.reader.owner, None, view.run), []).append(view)
    homes = {(*_job_of(follower), view.run) for follower, view in seen if view.run}
    for follower, view in seen:
        if not view.run:
            job = owner, directory, _ = _job_of(follower)
            runs = [_Source(owner, None, run) for *other, run in homes if tuple(other) == job]
            _add_unnamed(view, _Source(owner, directory, 0), runs, found)
    return [source.world(members, now_ns, found) for source, members in found.items()]


@dataclass(frozen=True, slots=True)
class _Source:
    """What the ranks of one run share: a user and, while they do not know their run yet, a directory."""

    owner: int
    directory: Path | None
    run: int

    def world(self, members: list[RankView], now_ns: int, others: Collection[_Source]) -> WorldSnapshot:
        is_foreign = self.owner != os.geteuid()
        run, source = self.run, f"user {self.owner}" if is_foreign else ""
        if self.directory is not None:
            source = f"{source} {self.directory}"
        elif is_foreign and sum(other.run == run for other in others) > 1:
            # Any user who has learned the id of someone else's run can write it on tapes of their own.
            run = run_id_of_claim(run, self.owner)
        return WorldSnapshot(run, now_ns, MappingProxyType(_ranks(members)), source=source, is_foreign=is_foreign)


def _job_of(follower: TapeFollower) -> tuple[int, Path, int]:
    """What all ranks of a job on this node have in common, whether they know their run or not."""
    return follower.reader.owner, follower.reader.path.parent, follower.reader.identity.world_size


def _view_of(follower: TapeFollower, now_ns: int) -> RankView | None:
    """A rank as it is now; one that cannot be viewed is left out from then on, without affecting the others."""
    if follower.failure is not None:
        return None
    try:
        return follower.view(now_ns)
    except Exception as error:  # a forged tape may lead to anything
        follower.failure = error
        return None


def _add_unnamed(
    view: RankView, source: _Source, runs: Iterable[_Source], found: dict[_Source, list[RankView]]
) -> None:
    """Assign a rank that does not know its run yet, or ended before it did, to the run of its job that it overlaps."""
    named = [run for run in runs if _runs_with(view, found[run])]
    if len(named) == 1:
        found[named[0]].append(view)
    elif view.alive:
        found.setdefault(source, []).append(view)


def _runs_with(view: RankView, members: list[RankView]) -> bool:
    """Whether a rank was alive at the same time as a run that it could be a member of.

    A launcher starts a new attempt only after the previous one is gone.
    """
    is_missing = all(member.rank != view.rank for member in members)
    began_ns = min(member.created_ns for member in members)
    return is_missing and (view.alive or view.heartbeat_ns >= began_ns) and any(member.alive for member in members)


def _ranks(views: list[RankView]) -> dict[int, RankView]:
    """One view per rank, without leftovers of an earlier attempt."""
    ordered = sorted(of_this_attempt(views), key=lambda view: (view.alive, view.created_ns))
    return {view.rank: view for view in ordered}


def of_this_attempt(views: Collection[RankView]) -> list[RankView]:
    """Leave out the ranks of an earlier attempt.

    An id that is not agreed upon yet may be that of the previous attempt. Its ranks are dead, and were gone before this
    attempt's tapes were created.
    """
    youngest_ns = max((view.created_ns for view in views if view.alive and not view.run_is_sure), default=0)
    # Heartbeats come once a second; a reader that was there in time checks more often.
    return [view for view in views if view.alive or max(view.heartbeat_ns, view.seen_alive_ns) >= youngest_ns]


def settled(seen: Sequence[tuple[TapeIdentity, RankView]]) -> list[RankView]:
    """The views of tapes, with helpers that ended along with their rank shown as finished.

    Args:
        seen: Each tape's identity and view, including those of the ranks that started the helpers.
    """
    if not any(identity.parent for identity, _ in seen):
        return [view for _, view in seen]
    running = [identity for identity, view in seen if view.alive and view.state is TapeState.RUNNING]
    known = [identity for identity, _ in seen]
    return [
        dataclasses.replace(view, state=TapeState.FINISHED)
        if view.is_dead and is_idle(view) and has_outlived_parent(identity, known, running)
        else view
        for identity, view in seen
    ]


def is_idle(view: RankView) -> bool:
    """Whether a rank that is gone was not waiting and did not fail."""
    return view.state is TapeState.RUNNING and all(one.waiting_since_ns is None for one in view.open)
