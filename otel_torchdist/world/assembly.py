"""Takes a snapshot of each run that tapes belong to.

A helper is terminated silently when its rank ends; that does not count as a death unless it was waiting for something.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from otel_torchdist.job.runs.membership import RunMember, RunMembership, has_outlived_parent, is_peer, sort_into_runs
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.naming import MemberRank, run_id_of_claim
from otel_torchdist.tape.identity import TapeIdentity, process_began_ns
from otel_torchdist.world.following.follower import TapeFollower
from otel_torchdist.world.joining import joined
from otel_torchdist.world.split_launches import with_other_parts, with_other_sizes


def worlds(
    followers: Iterable[TapeFollower], now_ns: int, looked_ns: int = 0, neighbours: Collection[int] = ()
) -> list[WorldSnapshot]:
    """The snapshots of all runs that the tapes belong to, each with its local ranks; see these for the times.

    Args:
        followers: They follow the tapes.
        now_ns: See `WorldSnapshot`.
        looked_ns: See `WorldSnapshot`.
        neighbours: Nonces of tapes that another agent reads: it judges their runs.
    """
    read = [(follower, view) for follower in followers if (view := _view_of(follower, now_ns)) is not None]
    shown = settled([(follower.reader.identity, view) for follower, view in read])
    views = {follower: view for (follower, _), view in zip(read, shown, strict=True)}
    runs = sort_into_runs({follower: _member(follower, view) for follower, view in views.items()})
    found = {key: {rank: views[follower] for rank, follower in ranks.items()} for key, ranks in runs.items()}
    for key in [key for key in found if not key.run]:
        began_ns = {rank: process_began_ns(follower.reader.identity) for rank, follower in runs[key].items()}
        found[key] = _with_twins(of_newest_launch(found[key], began_ns), runs[key], views)
    there = {key: ranks for key, ranks in found.items() if ranks}
    shown_here: dict[RunMembership, dict[int, RankView]] = {}
    for owner in {key.owner for key in there}:  # anyone can write on tapes of their own that they have met others
        together = joined({key: ranks for key, ranks in there.items() if key.owner == owner})
        own = [key for key, ranks in together.items() if not _is_of_neighbours(ranks, neighbours)]
        together = with_other_sizes(with_other_parts(together))
        shown_here |= {key: together[key] for key in own}
    return [_world(key, left_alone(ranks), now_ns, looked_ns, found) for key, ranks in shown_here.items()]


def _is_of_neighbours(ranks: Mapping[int, RankView], neighbours: Collection[int]) -> bool:
    return all(view.nonce in neighbours for rank, view in ranks.items() if not isinstance(rank, MemberRank))


def left_alone(ranks: dict[int, RankView]) -> dict[int, RankView]:
    """Show processes of other worlds that were ended after the run as finished, unless they waited or had failed.

    Whoever starts a trainer and its engines ends the engines when the trainer is done.
    """
    is_done = all(
        view.state is TapeState.FINISHED and not view.is_dead
        for rank, view in ranks.items()
        if not isinstance(rank, MemberRank)
    )
    if not is_done:
        return ranks
    return {
        rank: as_finished(view) if isinstance(rank, MemberRank) and view.is_dead else view
        for rank, view in ranks.items()
    }


def of_newest_launch(ranks: dict[int, RankView], began_ns: Mapping[int, int]) -> dict[int, RankView]:
    """The ranks that have been launched together, of those that do not know their run; none if nobody saw one alive.

    Launchers start an attempt when the one before is gone: a rank whose launch failed at once belongs to those whose
    processes were there by then, though they may not have had a tape yet.

    Args:
        ranks: Those of one directory.
        began_ns: By rank, when its process began.
    """
    living = {rank for rank, view in ranks.items() if view.alive}
    seen_ns = {rank: view.life.seen_ns for rank, view in ranks.items() if view.seen_alive_ns}
    newest = living or {rank for rank, moment_ns in seen_ns.items() if moment_ns == max(seen_ns.values())}
    since_ns = min((began_ns[rank] for rank in newest), default=0)
    return {rank: view for rank, view in ranks.items() if newest and view.life.reaches(since_ns)}


def _with_twins(
    ranks: dict[int, RankView], followers: Mapping[int, TapeFollower], views: Mapping[TapeFollower, RankView]
) -> dict[int, RankView]:
    """The ranks of a launch, with the other live processes that claim to be one of them.

    Args:
        ranks: Those of the launch.
        followers: By rank, the tape of each.
        views: All ranks that are read.
    """
    found = dict(ranks)
    for rank, view in ranks.items():
        own = followers[rank].reader
        others = [
            follower.reader.identity.pid
            for follower, other in views.items()
            if other.rank == rank
            and other.alive
            and other.state is TapeState.RUNNING
            and not other.run
            and other.nonce != view.nonce
            and (follower.reader.path.parent, follower.reader.owner) == (own.path.parent, own.owner)
            and follower.reader.identity.pid != own.identity.pid
        ]
        if others and view.alive:
            found[rank] = dataclasses.replace(view, twins=tuple(sorted({own.identity.pid, *others})))
    return found


def _member(follower: TapeFollower, view: RankView) -> RunMember:
    reader = follower.reader
    identity = reader.identity
    return RunMember(
        reader.owner, reader.path.parent, identity.world_size, bool(identity.parent), view.rank, view.run, view.life
    )


def _world(
    key: RunMembership, ranks: dict[int, RankView], now_ns: int, looked_ns: int, others: Collection[RunMembership]
) -> WorldSnapshot:
    is_foreign = key.owner != os.geteuid()
    run, source = key.run, f"user {key.owner}" if is_foreign else ""
    if key.directory is not None:
        source = f"{source} {key.directory}"
    elif is_foreign and sum(other.run == run for other in others) > 1:
        # Any user who has learned the id of someone else's run can write it on tapes of their own.
        run = run_id_of_claim(run, key.owner)
    return WorldSnapshot(
        run, now_ns, MappingProxyType(ranks), source=source, is_foreign=is_foreign, looked_ns=looked_ns
    )


def _view_of(follower: TapeFollower, now_ns: int) -> RankView | None:
    """A rank as it is now; one that cannot be viewed is left out from then on, without affecting the others."""
    if follower.failure is not None:
        return None
    try:
        return follower.view(now_ns)
    except Exception as error:  # a forged tape may lead to anything
        follower.failure = error
        return None


def settled(seen: Sequence[tuple[TapeIdentity, RankView]]) -> list[RankView]:
    """The views of tapes, with helpers that ended along with their rank shown as finished.

    Args:
        seen: Each tape's identity and view, including those of the ranks that started the helpers.
    """
    if not any(identity.parent for identity, _ in seen):
        return [view for _, view in seen]
    running = [identity for identity, view in seen if view.alive and view.state is TapeState.RUNNING]
    known = [identity for identity, _ in seen]
    runs = {identity.nonce: view.run for identity, view in seen}
    return [
        as_finished(view)
        if view.is_dead
        and not is_peer(view.run, runs.get(identity.parent))
        and has_outlived_parent(identity, known, running)
        else view
        for identity, view in seen
    ]


def as_finished(helper: RankView) -> RankView:
    """The view of a helper that ended along with its rank: it has finished, unless it was waiting or had failed.

    How its process ended then means nothing.
    """
    is_idle = helper.state is not TapeState.FAILED and all(one.waiting_since_ns is None for one in helper.open)
    return dataclasses.replace(helper, state=TapeState.FINISHED, death=None) if is_idle else helper
