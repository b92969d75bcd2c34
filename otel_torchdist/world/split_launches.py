"""Joins the parts of a launch that meet at different addresses, such as a rank that was given another port.

Started by hand, ranks have their tapes in a directory for each address. Parts are of one launch only if nothing speaks
against it: each lacks the ranks that the other has, all their ranks wait at the same time, in worlds of one size, and
have called from the same line. A launch that has all its ranks is never joined with another.

Ranks that were given another world size at the same address are in a world of their own, in the same directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from otel_torchdist.model.kinds import How, RecordKind
from otel_torchdist.model.names import INIT_PROCESS_GROUP, CallSiteName
from otel_torchdist.model.snapshot import RankView

K = TypeVar("K", bound=Hashable)

TOGETHER_NS: Final = 1_000_000_000
"""Shortest time for which all ranks of both parts wait: launches that make progress are over by then."""


class _Part(NamedTuple):
    """A part of a launch: the ranks that meet at one address.

    Attributes:
        ranks: The ranks.
        world_size: How many ranks the world has.
        address: Where they meet.
        call_site: Where they have called it.
        since_ns: When the last of them came.
        until_ns: Until when all of them were seen to wait.
    """

    ranks: Mapping[int, RankView]
    world_size: int
    address: str
    call_site: CallSiteName | None
    since_ns: int
    until_ns: int

    def fits(self, other: _Part) -> bool:
        """Whether two parts are of one launch."""
        is_alike = (self.world_size, self.call_site) == (other.world_size, other.call_site)
        waits_ns = min(self.until_ns, other.until_ns) - max(self.since_ns, other.since_ns)
        is_apart = self.address != other.address and self.ranks.keys().isdisjoint(other.ranks)
        return is_alike and is_apart and waits_ns >= TOGETHER_NS


def with_other_parts(runs: Mapping[K, dict[int, RankView]]) -> dict[K, dict[int, RankView]]:
    """Return the runs, each launch that lacks ranks with those that wait elsewhere.

    Args:
        runs: Each run's ranks, or each part's; all of one user and node.
    """
    parts = {key: part for key, ranks in runs.items() if (part := _part_of(ranks)) is not None}
    found = dict(runs)
    for key, part in parts.items():
        others = [other.ranks for other in parts.values() if part.fits(other)]
        claims = Counter(rank for ranks in others for rank in ranks)
        for ranks in others:  # not where several could be that rank
            if all(claims[rank] == 1 for rank in ranks):
                found[key] = {**found[key], **ranks}
    return found


def _part_of(ranks: Mapping[int, RankView]) -> _Part | None:
    """The part of a launch that these ranks are; None if one of them is in no launch, or all have come."""
    launches = {rank: launch for rank, view in ranks.items() if (launch := _launch_of(view)) is not None}
    if not ranks or len(launches) < len(ranks):
        return None
    first, size = launches[min(launches)], ranks[min(ranks)].world_size
    same = {(launch.address, launch.call_site, ranks[rank].world_size) for rank, launch in launches.items()}
    if len(same) != 1 or len(ranks) >= size:
        return None
    since_ns = max(launch.since_ns for launch in launches.values())
    until_ns = min(launch.until_ns for launch in launches.values())
    return _Part(ranks, size, first.address, first.call_site, since_ns, until_ns)


class _LaunchWait(NamedTuple):
    """The wait of one rank in its launch."""

    address: str
    call_site: CallSiteName | None
    since_ns: int
    until_ns: int


def _launch_of(view: RankView) -> _LaunchWait | None:
    """The launch that a rank waits in, or that has failed; None if it has none, or knows its run."""
    for operation in (*view.open, *((view.last,) if view.last is not None else ())):
        record, name = operation.record, operation.group.name if operation.group is not None else None
        is_launch = record.kind is RecordKind.RENDEZVOUS and operation.name == INIT_PROCESS_GROUP
        if is_launch and name is not None and name.address and not view.run and record.how in (None, How.FAILED):
            seen_ns = max(view.heartbeat_ns, view.seen_alive_ns)
            until_ns = record.completed_ns if record.completed_ns is not None else seen_ns
            return _LaunchWait(name.address, operation.call_site, record.entered_ns, until_ns)
    return None


def with_other_sizes(runs: Mapping[K, dict[int, RankView]]) -> dict[K, dict[int, RankView]]:
    """Return the runs, with what each rank's address has been given as the size of other worlds at the same time.

    Args:
        runs: Each run's ranks; all of one user and node.
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
        if other.world_size != view.world_size and addresses & _addresses(other) and view.life.overlaps(other.life)
    }


def _addresses(view: RankView) -> set[str]:
    """Where a rank has met the others of its default group, or waits for them."""
    groups = [group.name for group in view.groups.values()]
    groups += [operation.group.name for operation in view.open if operation.group is not None]
    return {name.address for name in groups if name.address and len(name.ranks) == view.world_size}
