"""The parallelism graph of a job: the axes of its world, their roles, and the traffic along them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from otel_torchdist.analysis.parallelism.axes import Grid, grid_of
from otel_torchdist.analysis.parallelism.calls import GroupCalls, WorldCalls
from otel_torchdist.analysis.parallelism.families import Family, Members, Partition, families_of
from otel_torchdist.analysis.parallelism.imbalance import Imbalance, worst
from otel_torchdist.analysis.parallelism.roles import GroupContext, RingCounts, RoleEvidence, is_misnamed, roles_of
from otel_torchdist.model.kinds import Phase


class ParallelGroups(msgspec.Struct, frozen=True):
    """Groups with the same purpose.

    Attributes:
        members: The members of each group, by first member.
        size: Number of ranks in each group.
        stride: Distance of neighbors in a group; null if it is not the same everywhere.
        span: Indices of the axes that each group spans completely, from 0; the index after the last axis stands for the
            copies of the grid. Null if a group spans some only in part.
        inferred: Whether some groups were not seen.
        names: Names that frameworks give the groups.
        misnamed: Names that contradict the roles shown by the calls.
        roles: Roles shown by the calls, the largest share first; empty if no call shows a role.
        sent_bytes: Bytes sent in the groups.
        across_hosts: Number of groups with members on different hosts; null if hosts are unknown.
        imbalance: Imbalance of `all_to_all` in the most unbalanced group; null if no such call is known on all members
            of a group.
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
    """Bytes from one rank to another, assuming that libraries use rings in rank order.

    Attributes:
        sender: The rank that sends.
        receiver: The rank that receives.
        bytes: Bytes of all counted calls.
    """

    sender: int
    receiver: int
    bytes: int


class Graph(msgspec.Struct, frozen=True):
    """The parallel world of a job.

    Attributes:
        world_size: Number of ranks in the job.
        unseen: Ranks without records, ascending.
        steady: Whether only calls from the third step on were counted; else all were.
        copies: Number of grids of this shape in the world.
        coordinates: For each rank: its coordinate on each axis, then the index of its copy of the grid.
        axes: The groups along each axis of the grid, nearest neighbors first.
        groups: All other groups: first those that span several axes completely, then the rest.
        traffic: Bytes from rank to rank.
        unattributed_bytes: Bytes missing from `traffic`: `all_to_all` in groups of more than 128 ranks, and messages to
            unknown ranks.
        hosts: Known hosts, by rank.
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
        """Bytes by sender and receiver."""
        return {(traffic.sender, traffic.receiver): traffic.bytes for traffic in self.traffic}


def graph_of(calls: WorldCalls) -> Graph:
    """Derive the graph from the calls of all ranks."""
    by_members = _with_pipelines(calls)
    unseen = tuple(rank for rank in range(calls.world_size) if rank not in calls.ranks)
    descriptions = {members: group.descriptions for members, group in by_members.items()}
    families = families_of(descriptions, calls.world_size, unseen)
    weights = {family: sum(_sent(by_members, members) for members in family.groups) for family in families.whole}
    grid = grid_of(families, calls.world_size, weights)
    builder = _Builder(calls, by_members, grid)
    axes = [builder.axis(place, axis) for place, axis in enumerate(grid.axes)]
    off_axis = [family for family in families.whole if family not in grid.axes]
    groups = [builder.off_axis(family.groups, family.is_inferred) for family in off_axis]
    groups += [builder.off_axis(similar) for similar in _similar(families.rest, descriptions if unseen else {})]
    groups.sort(key=lambda groups: (groups.span is None, len(groups.span or ()), groups.members))
    return Graph(
        world_size=calls.world_size,
        unseen=unseen,
        steady=calls.has_steps,
        copies=grid.copies,
        coordinates=grid.coordinates,
        axes=tuple(axes),
        groups=tuple(groups),
        traffic=tuple(Traffic(*pair, size) for pair, size in sorted(calls.sent.items())),
        unattributed_bytes=calls.unattributed,
        hosts=calls.hosts,
    )


def _sent(by_members: Mapping[Members, GroupCalls], members: Members) -> float:
    group = by_members.get(members)
    return group.sent if group is not None else 0.0


def _with_pipelines(calls: WorldCalls) -> dict[Members, GroupCalls]:
    """Return the calls of all groups, with pipelines split off from larger groups in which they send messages."""
    groups = dict(calls.groups)
    for members, group in calls.groups.items():
        pipelines = _connected(group.messages)
        if not pipelines or pipelines == [members]:
            continue
        if len(members) < calls.world_size and not calls.ranks.issuperset(members):
            continue  # messages from ranks without records may connect the others
        groups[members] = group.without_messages()
        for ranks in pipelines:
            groups.setdefault(ranks, GroupCalls()).add(group.of_senders(ranks))
    return groups


def _connected(pairs: Iterable[tuple[int, int]]) -> list[Members]:
    """Return the sets of ranks that messages connect, directly or through other ranks."""
    partition = Partition[int]()
    for sender, receiver in pairs:
        partition.join(sender, receiver)
    return sorted(tuple(sorted(ranks)) for ranks in partition.classes())


def _similar(groups: Iterable[Members], descriptions: Mapping[Members, Collection[str]]) -> list[list[Members]]:
    """Sort groups by size and by description. Callers pass descriptions only if some groups may be missing."""
    by_key: dict[tuple[int, tuple[str, ...]], list[Members]] = {}
    for members in groups:
        key = len(members), tuple(sorted(descriptions.get(members, ())))
        by_key.setdefault(key, []).append(members)
    return list(by_key.values())


class _Builder:
    """Builds the description of groups from their calls."""

    def __init__(self, calls: WorldCalls, by_members: Mapping[Members, GroupCalls], grid: Grid) -> None:
        self._calls = calls
        self._by_members = by_members
        self._grid = grid
        self._scattered = _scattered(by_members)
        self._has_backward = any(
            shape.phase is Phase.BACKWARD for group in by_members.values() for shape in group.shapes
        )

    def axis(self, place: int, axis: Family) -> ParallelGroups:
        """Describe the groups along an axis."""
        return self._groups(axis.groups, (place,), axis.is_inferred)

    def off_axis(self, members: Sequence[Members], is_inferred: bool = False) -> ParallelGroups:
        """Describe groups of one size that are not along one axis."""
        spans = {self._grid.span(group) for group in members}
        return self._groups(members, spans.pop() if len(spans) == 1 else None, is_inferred)

    def _groups(self, members: Sequence[Members], span: tuple[int, ...] | None, is_inferred: bool) -> ParallelGroups:
        calls = GroupCalls()
        for group in members:
            if group in self._by_members:
                calls.add(self._by_members[group])
        described = set(members)
        scattered = {
            elements for group, of_group in self._scattered.items() if group not in described for elements in of_group
        }
        context = GroupContext(scattered, _ring_counts(members, calls, self._calls.ranks), self._has_backward)
        roles = roles_of(calls, context)
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
                self._by_members[group].exchanges.imbalance(group) for group in members if group in self._by_members
            ),
        )

    def _across_hosts(self, members: Sequence[Members]) -> int | None:
        hosts = self._calls.hosts
        if not hosts:
            return None
        return sum(len({hosts[rank] for rank in group if rank in hosts}) > 1 for group in members)


def _ring_counts(members: Sequence[Members], calls: GroupCalls, known: Collection[int]) -> RingCounts | None:
    """Count the messages around rings of more than two ranks. Return None if the groups are not rings."""
    if calls.unaddressed and not calls.messages:
        return _unaddressed_ring_counts(members, calls)
    between: Counter[tuple[int, int]] = Counter()
    neighbors: dict[int, set[int]] = {}
    for (sender, receiver), count in calls.messages.items():
        between[min(sender, receiver), max(sender, receiver)] += count
        neighbors.setdefault(sender, set()).add(receiver)
        neighbors.setdefault(receiver, set()).add(sender)
    rings = [
        group
        for group in members
        if len(group) > 2 and all(len(neighbors.get(rank, ())) > 1 for rank in group if rank in known)
    ]
    rings = [ring for ring in rings if not neighbors.keys().isdisjoint(ring)]
    if not rings:
        return None
    if not all(rank in known for ring in rings for rank in ring):
        return RingCounts(0, 0)  # some ranks have no records, so their messages are not counted
    ranks = {rank for ring in rings for rank in ring}
    counts = [count for pair, count in between.items() if ranks.issuperset(pair)]
    return RingCounts(min(counts), max(counts))


def _scattered(groups: Mapping[Members, GroupCalls]) -> dict[Members, set[int]]:
    """Return the element counts that each rank holds after a reduce_scatter, by group."""
    scattered: dict[Members, set[int]] = {}
    for members, group in groups.items():
        for shape, count in group.shapes.items():
            if shape.collective == "reduce_scatter":
                scattered.setdefault(members, set()).update(elements // len(members) for elements in count.elements)
    return scattered


def _unaddressed_ring_counts(members: Sequence[Members], calls: GroupCalls) -> RingCounts | None:
    """Count messages per rank if peers are not recorded: the first and last stages of a pipeline have fewer."""
    rings = [group for group in members if len(group) > 2]
    whole = [ring for ring in rings if all(calls.unaddressed[rank] for rank in ring)]
    if not rings:
        return None
    counts = [calls.unaddressed[rank] for ring in whole for rank in ring]
    return RingCounts(min(counts, default=0), max(counts, default=0))
