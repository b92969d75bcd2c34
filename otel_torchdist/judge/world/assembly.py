"""Builds a snapshot of each run from the tapes of its ranks.

A helper process is killed without a record when its rank ends. This counts as a death only if the helper was waiting
in an operation.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.judge.world.joining import joined
from otel_torchdist.model.ids import run_id_of_claim
from otel_torchdist.model.kinds import How, RecordKind, TapeState
from otel_torchdist.model.names import INIT_PROCESS_GROUP, CallSiteName
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import MemberRank
from otel_torchdist.node.job.runs.membership import (
    RunKey,
    RunMember,
    has_outlived_parent,
    is_peer,
    sort_into_runs,
)
from otel_torchdist.tape.identity import TapeIdentity, process_began_ns


def worlds(
    followers: Iterable[TapeFollower], now_ns: int, looked_ns: int = 0, neighbors: Collection[int] = ()
) -> list[WorldSnapshot]:
    """Return the snapshots of all runs that the tapes belong to, each with its local ranks.

    Args:
        followers: Followers of the tapes.
        now_ns: See `WorldSnapshot`.
        looked_ns: See `WorldSnapshot`.
        neighbors: Nonces of tapes of other jobs. Another agent judges their runs.
    """
    read = [(follower, view) for follower in followers if (view := _view_of(follower, now_ns)) is not None]
    shown = mark_ended_helpers([(follower.reader.identity, view) for follower, view in read])
    views = {follower: view for (follower, _), view in zip(read, shown, strict=True)}
    runs = sort_into_runs({follower: _member(follower, view) for follower, view in views.items()})
    members = {key: {rank: views[follower] for rank, follower in ranks.items()} for key, ranks in runs.items()}
    for key in [key for key in members if not key.run]:
        began_ns = {rank: process_began_ns(follower.reader.identity) for rank, follower in runs[key].items()}
        members[key] = _with_twins(of_newest_launch(members[key], began_ns), runs[key], views)
    nonempty = {key: ranks for key, ranks in members.items() if ranks}
    judged: dict[RunKey, dict[int, RankView]] = {}
    # Join only runs of one user: any user can forge a tape that claims a meeting with another user's process.
    for owner in {key.owner for key in nonempty}:
        runs_of_owner = joined({key: ranks for key, ranks in nonempty.items() if key.owner == owner})
        judged_keys = [key for key, ranks in runs_of_owner.items() if not _is_of_neighbors(ranks, neighbors)]
        runs_of_owner = with_other_sizes(with_other_parts(runs_of_owner))
        judged |= {key: runs_of_owner[key] for key in judged_keys}
    return [_world(key, mark_late_kills(ranks), now_ns, looked_ns, members) for key, ranks in judged.items()]


def _is_of_neighbors(ranks: Mapping[int, RankView], neighbors: Collection[int]) -> bool:
    return all(view.nonce in neighbors for rank, view in ranks.items() if not isinstance(rank, MemberRank))


def mark_late_kills(ranks: dict[int, RankView]) -> dict[int, RankView]:
    """Mark processes of other worlds as finished if they were killed after the run had finished.

    A program that starts a trainer and its engines kills the engines when the trainer is done. Processes that were
    waiting or had failed keep their state.
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
    """Return the ranks of the newest launch among ranks without a run id; empty if none was seen alive.

    Launchers start a new attempt after the previous one has exited. A rank whose launch failed immediately belongs to
    the launch of the processes that existed at that time, even if they had no tape yet.

    Args:
        ranks: Ranks of one directory.
        began_ns: By rank, the start time of its process.
    """
    living = {rank for rank, view in ranks.items() if view.alive}
    seen_ns = {rank: view.lifetime.seen_ns for rank, view in ranks.items() if view.seen_alive_ns}
    newest = living or {rank for rank, moment_ns in seen_ns.items() if moment_ns == max(seen_ns.values())}
    since_ns = min((began_ns[rank] for rank in newest), default=0)
    return {rank: view for rank, view in ranks.items() if newest and view.lifetime.reaches(since_ns)}


def _with_twins(
    ranks: dict[int, RankView], followers: Mapping[int, TapeFollower], views: Mapping[TapeFollower, RankView]
) -> dict[int, RankView]:
    """Return the ranks of a launch, each with the ids of other live processes that claim the same rank number.

    Args:
        ranks: Ranks of the launch.
        followers: Their followers, by rank.
        views: All ranks whose tapes are read.
    """
    with_twins = dict(ranks)
    for rank, view in ranks.items():
        reader = followers[rank].reader
        pids = [
            follower.reader.identity.pid
            for follower, other in views.items()
            if other.rank == rank
            and other.alive
            and other.state is TapeState.RUNNING
            and not other.run
            and other.nonce != view.nonce
            and (follower.reader.path.parent, follower.reader.owner) == (reader.path.parent, reader.owner)
            and follower.reader.identity.pid != reader.identity.pid
        ]
        if pids and view.alive:
            with_twins[rank] = dataclasses.replace(view, twins=tuple(sorted({reader.identity.pid, *pids})))
    return with_twins


def _member(follower: TapeFollower, view: RankView) -> RunMember:
    reader = follower.reader
    identity = reader.identity
    return RunMember(
        reader.owner, reader.path.parent, identity.world_size, bool(identity.parent), view.rank, view.run, view.lifetime
    )


def _world(
    key: RunKey, ranks: dict[int, RankView], now_ns: int, looked_ns: int, others: Collection[RunKey]
) -> WorldSnapshot:
    is_foreign = key.owner != os.geteuid()
    run, source = key.run, f"user {key.owner}" if is_foreign else ""
    if key.directory is not None:
        source = f"{source} {key.directory}"
    elif is_foreign and sum(other.run == run for other in others) > 1:
        # Any user who knows the id of another user's run can write that id on a tape.
        run = run_id_of_claim(run, key.owner)
    return WorldSnapshot(
        run, now_ns, MappingProxyType(ranks), source=source, is_foreign=is_foreign, looked_ns=looked_ns
    )


def _view_of(follower: TapeFollower, now_ns: int) -> RankView | None:
    """Return the current view of a rank; None if viewing it fails, now or in an earlier pass."""
    if follower.failure is not None:
        return None
    try:
        return follower.view(now_ns)
    except Exception as error:  # a forged tape may lead to anything
        follower.failure = error
        return None


def mark_ended_helpers(seen: Sequence[tuple[TapeIdentity, RankView]]) -> list[RankView]:
    """Return the views of tapes, with helpers marked as finished if they ended along with their rank.

    Args:
        seen: Identity and view of each tape, including tapes of the ranks that started the helpers.
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
    """Mark a helper that ended along with its rank as finished, unless it was waiting or had failed.

    The exit status of such a helper is no evidence.
    """
    is_idle = helper.state is not TapeState.FAILED and all(
        operation.waiting_since_ns is None for operation in helper.open
    )
    return dataclasses.replace(helper, state=TapeState.FINISHED, death=None) if is_idle else helper


# --- split launches ---------------------------------------------------------------------------------------------------
# Joins partial launches, whose ranks wait at different addresses, for example because one rank got another port. Ranks
# started without a launcher have their tapes in a directory for each address. Two partial launches belong together only
# if they have no rank in common, all their ranks wait at the same time, their world sizes are equal, and their calls
# come from the same line. A complete launch is never joined with another.
# Ranks with another world size at the same address form a separate world in the same directory.


K = TypeVar("K", bound=Hashable)

TOGETHER_NS: Final = 1_000_000_000
"""Minimum time in ns for which all ranks of both partial launches wait. A launch that makes progress takes less."""


class _PartialLaunch(NamedTuple):
    """The ranks of a launch that wait at one address.

    Attributes:
        world_size: Number of ranks in the world.
        address: Address of their store.
        call_site: Line that called `init_process_group`.
        since_ns: When the last rank began to wait.
        until_ns: Latest time at which all ranks were seen waiting.
    """

    ranks: Mapping[int, RankView]
    world_size: int
    address: str
    call_site: CallSiteName | None
    since_ns: int
    until_ns: int

    def fits(self, other: _PartialLaunch) -> bool:
        """Return whether two partial launches belong together."""
        is_alike = (self.world_size, self.call_site) == (other.world_size, other.call_site)
        waits_ns = min(self.until_ns, other.until_ns) - max(self.since_ns, other.since_ns)
        is_apart = self.address != other.address and self.ranks.keys().isdisjoint(other.ranks)
        return is_alike and is_apart and waits_ns >= TOGETHER_NS


def with_other_parts(runs: Mapping[K, dict[int, RankView]]) -> dict[K, dict[int, RankView]]:
    """Return the runs, each partial launch joined with the partial launches at other addresses that belong to it.

    Args:
        runs: Ranks of each run or partial launch; all of one user and node.
    """
    parts = {key: part for key, ranks in runs.items() if (part := _partial_launch_of(ranks)) is not None}
    complete = dict(runs)
    for key, part in parts.items():
        others = [other.ranks for other in parts.values() if part.fits(other)]
        claims = Counter(rank for ranks in others for rank in ranks)
        for ranks in others:  # skip a partial launch if another one claims one of its rank numbers
            if all(claims[rank] == 1 for rank in ranks):
                complete[key] = {**complete[key], **ranks}
    return complete


def _partial_launch_of(ranks: Mapping[int, RankView]) -> _PartialLaunch | None:
    """Return the launch that these ranks are a part of; None if it is complete, or if a rank is in no launch."""
    launches = {rank: launch for rank, view in ranks.items() if (launch := _launch_of(view)) is not None}
    if not ranks or len(launches) < len(ranks):
        return None
    first, size = launches[min(launches)], ranks[min(ranks)].world_size
    same = {(launch.address, launch.call_site, ranks[rank].world_size) for rank, launch in launches.items()}
    if len(same) != 1 or len(ranks) >= size:
        return None
    since_ns = max(launch.since_ns for launch in launches.values())
    until_ns = min(launch.until_ns for launch in launches.values())
    return _PartialLaunch(ranks, size, first.address, first.call_site, since_ns, until_ns)


class _LaunchWait(NamedTuple):
    """The wait of one rank in its launch."""

    address: str
    call_site: CallSiteName | None
    since_ns: int
    until_ns: int


def _launch_of(view: RankView) -> _LaunchWait | None:
    """Return the launch that a rank waits or failed in; None if there is none, or if the rank knows its run."""
    for operation in (*view.open, *((view.last,) if view.last is not None else ())):
        record, name = operation.record, operation.group.name if operation.group is not None else None
        is_launch = record.kind is RecordKind.RENDEZVOUS and operation.name == INIT_PROCESS_GROUP
        if is_launch and name is not None and name.address and not view.run and record.how in (None, How.FAILED):
            seen_ns = max(view.heartbeat_ns, view.seen_alive_ns)
            until_ns = record.completed_ns if record.completed_ns is not None else seen_ns
            return _LaunchWait(name.address, operation.call_site, record.entered_ns, until_ns)
    return None


def with_other_sizes(runs: Mapping[K, dict[int, RankView]]) -> dict[K, dict[int, RankView]]:
    """Return the runs, each rank with the world sizes of other ranks that lived at the same time and address.

    Args:
        runs: Ranks of each run; all of one user and node.
    """
    sizes = {view.world_size for ranks in runs.values() for view in ranks.values()}
    if len(sizes) < 2:
        return dict(runs)
    views = [view for ranks in runs.values() for view in ranks.values() if not view.world]
    return {
        key: {rank: replace(view, other_sizes=_other_sizes(view, views)) for rank, view in ranks.items()}
        for key, ranks in runs.items()
    }


def _other_sizes(view: RankView, others: Iterable[RankView]) -> dict[int, int]:
    addresses = _addresses(view) if not view.world else set[str]()
    return {
        other.rank: other.world_size
        for other in others
        if other.world_size != view.world_size
        and addresses & _addresses(other)
        and view.lifetime.overlaps(other.lifetime)
    }


def _addresses(view: RankView) -> set[str]:
    """Return the addresses at which a rank has created its default group, or waits for it to be created."""
    groups = [group.name for group in view.groups.values()]
    groups += [operation.group.name for operation in view.open if operation.group is not None]
    return {name.address for name in groups if name.address and len(name.ranks) == view.world_size}
