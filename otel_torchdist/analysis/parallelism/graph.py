"""The parallelism graph of a job: the axes of its world, what each is for, and what moves along them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from otel_torchdist.analysis.parallelism.axes import Grid, grid_of
from otel_torchdist.analysis.parallelism.calls import GroupCalls, WorldCalls
from otel_torchdist.analysis.parallelism.families import Family, Members, Partition, families_of
from otel_torchdist.analysis.parallelism.imbalance import Imbalance, worst
from otel_torchdist.analysis.parallelism.roles import RoleEvidence, Round, Surroundings, is_misnamed, roles_of
from otel_torchdist.model.kinds import Phase


class ParallelGroups(msgspec.Struct, frozen=True):
    """Groups that are for the same.

    Attributes:
        members: The members of each, by first member.
        size: Ranks of each.
        stride: Distance of neighbours in a group; null if it is not the same everywhere.
        span: The axes whose product each group is, from 0, the copies of the grid behind the last; null for parts of
            such a product.
        inferred: Whether some of them were not seen.
        names: Names that frameworks give them.
        misnamed: Names that promise something else than the calls show.
        roles: What their calls speak for, the largest share first; empty if they make none that says anything.
        sent_bytes: Bytes that were sent in them.
        across_hosts: Number of them with members on different hosts; null if hosts are not known.
        imbalance: How unevenly members take part in `all_to_all`, in the group where that is worst; null if there are
            no such calls, or none is known of all members of a group.
    """

    members: tuple[Members, ...]
    size: int
    stride: int | None
    span: tuple[int, ...] | None
    inferred: bool
    names: tuple[str, ...]
    misnamed: tuple[str, ...]
    roles: tuple[RoleEvidence, ...]
    sent_bytes: int
    across_hosts: int | None
    imbalance: Imbalance | None = None


class Traffic(msgspec.Struct, frozen=True, rename={"sender": "from", "receiver": "to"}):
    """What moves from one rank to another, if libraries use rings in the order of the ranks.

    Attributes:
        sender: The rank that sends.
        receiver: The rank that receives.
        bytes: Bytes of all calls that count.
    """

    sender: int
    receiver: int
    bytes: int


class Graph(msgspec.Struct, frozen=True):
    """The parallel world of a job.

    Attributes:
        world_size: Ranks of the job.
        unseen: Ranks without records, ascending.
        steady: Whether only calls from the third step on were counted; otherwise all were.
        copies: Number of grids of this shape that the world holds.
        coordinates: By rank, its coordinate on each axis, and as the last one its copy of the grid.
        axes: The groups along each axis of the grid, the axis with the nearest neighbours first.
        groups: Groups along no axis: products of axes, then parts of such products.
        traffic: Bytes from rank to rank.
        unattributed_bytes: Bytes of `all_to_all` in groups of more than 128 ranks, and of messages to unknown ranks,
            which are not in it.
        hosts: The host of each rank, as far as that is known.
    """

    world_size: int
    unseen: tuple[int, ...]
    steady: bool
    copies: int
    coordinates: tuple[tuple[int, ...], ...]
    axes: tuple[ParallelGroups, ...]
    groups: tuple[ParallelGroups, ...]
    traffic: tuple[Traffic, ...]
    unattributed_bytes: int
    hosts: Mapping[int, str]

    @property
    def sent(self) -> dict[tuple[int, int], int]:
        """Bytes from rank to rank, by both."""
        return {(one.sender, one.receiver): one.bytes for one in self.traffic}


def graph_of(calls: WorldCalls) -> Graph:
    """Derive the graph from the calls of all ranks."""
    by_members = _with_senders(calls)
    unseen = tuple(rank for rank in range(calls.world_size) if rank not in calls.ranks)
    descriptions = {members: group.descriptions for members, group in by_members.items()}
    families = families_of(descriptions, calls.world_size, unseen)
    weights = {family: sum(_sent(by_members, members) for members in family.groups) for family in families.whole}
    grid = grid_of(families, calls.world_size, weights)
    builder = _Builder(calls, by_members, grid)
    axes = [builder.axis(place, axis) for place, axis in enumerate(grid.axes)]
    rest = [family for family in families.whole if family not in grid.axes]
    others = [builder.others(family.groups, family.is_inferred) for family in rest]
    others += [builder.others(alike) for alike in _alike(families.rest, descriptions if unseen else {})]
    others.sort(key=lambda one: (one.span is None, len(one.span or ()), one.members))
    return Graph(
        world_size=calls.world_size,
        unseen=unseen,
        steady=calls.has_steps,
        copies=grid.copies,
        coordinates=grid.coordinates,
        axes=tuple(axes),
        groups=tuple(others),
        traffic=tuple(Traffic(*pair, size) for pair, size in sorted(calls.sent.items())),
        unattributed_bytes=calls.unspread,
        hosts=calls.hosts,
    )


def _sent(by_members: Mapping[Members, GroupCalls], members: Members) -> float:
    group = by_members.get(members)
    return group.sent if group is not None else 0.0


def _with_senders(calls: WorldCalls) -> dict[Members, GroupCalls]:
    """The groups, and those of ranks that send each other messages in a larger group, as stages of pipelines may do."""
    found = dict(calls.groups)
    for members, group in calls.groups.items():
        pipelines = _connected(group.messages)
        if not pipelines or pipelines == [members]:
            continue
        if len(members) < calls.world_size and not calls.ranks.issuperset(members):
            continue  # what ranks without records have sent may connect the others
        found[members] = group.without_messages()
        for ranks in pipelines:
            found.setdefault(ranks, GroupCalls()).add(group.of_senders(ranks))
    return found


def _connected(pairs: Iterable[tuple[int, int]]) -> list[Members]:
    """Sets of ranks that messages connect, directly or through others."""
    partition = Partition[int]()
    for one, other in pairs:
        partition.join(one, other)
    return sorted(tuple(sorted(ranks)) for ranks in partition.classes())


def _alike(groups: Iterable[Members], descriptions: Mapping[Members, Collection[str]]) -> list[list[Members]]:
    """Sort groups by size, and by name where groups are missing that would show which of them belong together."""
    found: dict[tuple[int, tuple[str, ...]], list[Members]] = {}
    for members in groups:
        key = len(members), tuple(sorted(descriptions.get(members, ())))
        found.setdefault(key, []).append(members)
    return list(found.values())


class _Builder:
    """Puts together what is known of groups."""

    def __init__(self, calls: WorldCalls, by_members: Mapping[Members, GroupCalls], grid: Grid) -> None:
        self._calls = calls
        self._by_members = by_members
        self._grid = grid
        self._scattered = _scattered(by_members)
        self._has_backward = any(kind.phase is Phase.BACKWARD for group in by_members.values() for kind in group.kinds)

    def axis(self, place: int, axis: Family) -> ParallelGroups:
        """The groups along an axis."""
        return self._groups(axis.groups, (place,), axis.is_inferred)

    def others(self, members: Sequence[Members], is_inferred: bool = False) -> ParallelGroups:
        """Groups of one size that are along no axis."""
        spans = {self._grid.span(one) for one in members}
        return self._groups(members, spans.pop() if len(spans) == 1 else None, is_inferred)

    def _groups(self, members: Sequence[Members], span: tuple[int, ...] | None, is_inferred: bool) -> ParallelGroups:
        calls = GroupCalls()
        for one in members:
            if one in self._by_members:
                calls.add(self._by_members[one])
        own = set(members)
        scattered = {elements for of, found in self._scattered.items() if of not in own for elements in found}
        around = Surroundings(scattered, _round(members, calls, self._calls.ranks), self._has_backward)
        roles = roles_of(calls, around)
        family = Family(tuple(members))
        return ParallelGroups(
            members=family.groups,
            size=family.size,
            stride=family.stride,
            span=span,
            inferred=is_inferred,
            names=tuple(sorted(calls.descriptions)),
            misnamed=tuple(text for text in sorted(calls.descriptions) if is_misnamed(text, roles)),
            roles=tuple(roles),
            sent_bytes=round(calls.sent),
            across_hosts=self._across_hosts(members),
            imbalance=worst(
                self._by_members[one].exchanges.imbalance(one) for one in members if one in self._by_members
            ),
        )

    def _across_hosts(self, members: Sequence[Members]) -> int | None:
        hosts = self._calls.hosts
        if not hosts:
            return None
        return sum(len({hosts[rank] for rank in one if rank in hosts}) > 1 for one in members)


def _round(members: Sequence[Members], calls: GroupCalls, known: Collection[int]) -> Round | None:
    """The messages around rings of more than two ranks; None if groups have a first and a last rank."""
    if calls.unaddressed and not calls.messages:
        return _unaddressed_round(members, calls)
    between: Counter[tuple[int, int]] = Counter()
    neighbours: dict[int, set[int]] = {}
    for (one, other), count in calls.messages.items():
        between[min(one, other), max(one, other)] += count
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    rings = [
        one
        for one in members
        if len(one) > 2 and all(len(neighbours.get(rank, ())) > 1 for rank in one if rank in known)
    ]
    rings = [ring for ring in rings if not neighbours.keys().isdisjoint(ring)]
    if not rings:
        return None
    if not all(rank in known for ring in rings for rank in ring):
        return Round(0, 0)  # the numbers of some are not known
    ranks = {rank for ring in rings for rank in ring}
    counts = [count for pair, count in between.items() if ranks.issuperset(pair)]
    return Round(min(counts), max(counts))


def _scattered(groups: Mapping[Members, GroupCalls]) -> dict[Members, set[int]]:
    """By group, how many elements a rank is left with after a reduce_scatter."""
    found: dict[Members, set[int]] = {}
    for members, group in groups.items():
        for kind, count in group.kinds.items():
            if kind.collective == "reduce_scatter":
                found.setdefault(members, set()).update(one // len(members) for one in count.elements)
    return found


def _unaddressed_round(members: Sequence[Members], calls: GroupCalls) -> Round | None:
    """The same where it is not recorded to whom messages go: the first and last stages of a pipeline have fewer."""
    rings = [one for one in members if len(one) > 2]
    whole = [one for one in rings if all(calls.unaddressed[rank] for rank in one)]
    if not rings:
        return None
    counts = [calls.unaddressed[rank] for ring in whole for rank in ring]
    return Round(min(counts, default=0), max(counts, default=0))
