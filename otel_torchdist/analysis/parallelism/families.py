"""Families of process groups: groups of equal size that partition the ranks, such as those along a mesh axis.

Families are derived from members. Names differ between frameworks, and may be wrong.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

_Item = TypeVar("_Item", bound=Hashable)
Members = tuple[int, ...]
"""Global ranks of a group, ascending."""


class Partition(Generic[_Item]):
    """A union-find of items."""

    def __init__(self, items: Iterable[_Item] = ()) -> None:
        """Start with one class per item."""
        self._parent: dict[_Item, _Item] = {item: item for item in items}

    def join(self, item: _Item, other: _Item) -> None:
        """Merge the classes of two items. New items are added."""
        self._parent[self._root(item)] = self._root(other)

    def classes(self) -> list[list[_Item]]:
        """Return the items of each class. Classes and items are in the order in which items were added."""
        classes: dict[_Item, list[_Item]] = {}
        for item in self._parent:
            classes.setdefault(self._root(item), []).append(item)
        return list(classes.values())

    def _root(self, item: _Item) -> _Item:
        parent = self._parent
        parent.setdefault(item, item)
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item


@dataclass(frozen=True, slots=True)
class Family:
    """Groups of one size that tile the world.

    Attributes:
        groups: Sorted by first member.
        is_inferred: Whether some groups were not seen, because there are no records of their ranks.
    """

    groups: tuple[Members, ...]
    is_inferred: bool = False

    @property
    def size(self) -> int:
        """Number of ranks in each group."""
        return len(self.groups[0])

    @property
    def stride(self) -> int | None:
        """The distance between neighbors; None if it is not the same everywhere."""
        strides = {after - before for members in self.groups for before, after in itertools.pairwise(members)}
        return strides.pop() if len(strides) == 1 else None

    def labels(self) -> list[int]:
        """Return the index of each rank's group."""
        labels = [0] * (self.size * len(self.groups))
        for label, members in enumerate(self.groups):
            for rank in members:
                labels[rank] = label
        return labels


@dataclass(frozen=True, slots=True)
class Families:
    """All groups of a world, sorted into families.

    Attributes:
        whole: Families that tile the world, by size and stride.
        rest: Groups without a family, ascending.
    """

    whole: tuple[Family, ...]
    rest: tuple[Members, ...]


def families_of(groups: Mapping[Members, Collection[str]], world_size: int, unseen: Collection[int] = ()) -> Families:
    """Sort groups into families.

    Groups form a family if they tile the world. Candidates are, in this order:

    1. All groups of one size, by the distances between their members. This fits meshes whose ranks are in order.
    2. Opposite sides of squares. In other meshes, groups with equal distances may lie on different axes.
    3. Groups of one size with the same description, because groups may be missing or belong to no mesh.
    4. The remaining groups, by the distances between their members.

    Args:
        groups: Descriptions of each group, by its members. Groups of one rank are left out.
        world_size: Number of ranks in the job.
        unseen: Ranks without records. Their groups may be missing.
    """
    remaining = {members for members in groups if len(members) > 1 and members[-1] < world_size}
    whole: list[Family] = []

    def take(candidates: Collection[Members]) -> None:
        """Move groups from `remaining` to a family if they tile the world."""
        family = _tiling(candidates, world_size, frozenset(unseen))
        if family is not None:
            whole.append(family)
            remaining.difference_update(candidates)

    for of_size in _group_by(remaining, len):
        classes = _group_by(of_size, _distances)
        if all(_tiling(candidates, world_size, frozenset(unseen)) for candidates in classes):
            for candidates in classes:
                take(candidates)
    if remaining:
        for candidates in _group_by_axis([*remaining, *(members for family in whole for members in family.groups)]):
            take([members for members in candidates if members in remaining])
    for size, text in sorted({(len(members), text) for members in remaining for text in groups[members] if text}):
        take([members for members in remaining if len(members) == size and text in groups[members]])
    for candidates in _group_by(remaining, _distances):
        take(candidates)
    whole.sort(key=lambda family: (family.size, family.stride or world_size, family.groups))
    return Families(tuple(whole), tuple(sorted(remaining)))


def _distances(members: Members) -> Members:
    return tuple(rank - members[0] for rank in members)


def _group_by(groups: Iterable[Members], key: Callable[[Members], object]) -> list[list[Members]]:
    by_key: dict[object, list[Members]] = {}
    for members in sorted(groups):
        by_key.setdefault(key(members), []).append(members)
    return list(by_key.values())


def _tiling(candidates: Collection[Members], world_size: int, unseen: frozenset[int]) -> Family | None:
    """Return a family of these groups, or None if they do not tile the world.

    Groups of ranks without records are added if their members follow from the other groups.
    """
    ranks = {rank for members in candidates for rank in members}
    if not candidates or len(ranks) != sum(map(len, candidates)):
        return None
    if len(ranks) == world_size:
        return Family(tuple(sorted(candidates)))
    size, stride = len(min(candidates)), Family(tuple(candidates)).stride
    if stride is None or world_size % (size * stride):
        return None
    firsts = [rank for rank in range(world_size) if rank // stride % size == 0]
    every = tuple(tuple(range(first, first + size * stride, stride)) for first in firsts)
    missing = {*every} - {*candidates}
    is_consistent = {*candidates} <= {*every} and all(unseen.issuperset(members) for members in missing)
    return Family(every, is_inferred=True) if is_consistent else None


def _group_by_axis(groups: Collection[Members]) -> list[list[Members]]:
    """Sort groups by their axis of the grid, independent of how ranks are numbered.

    Two groups lie on one axis if each member of one shares a third group with a different member of the other: the two
    groups are opposite sides of squares. This division of a grid into axes is unique (the prime factors of a Cartesian
    product of graphs). Groups that contain other groups are left out: they are products of axes.
    """
    sizes = _uniform_sizes(groups)
    sides = [members for members in groups if len(members) in sizes]
    sides = [members for members in sides if not any({*other} < {*members} for other in sides)]
    of_rank: dict[int, list[Members]] = {}
    for members in sides:
        for rank in members:
            of_rank.setdefault(rank, []).append(members)
    partition = Partition(sorted(sides))
    for side in sides:
        for opposite in _opposite(side, of_rank):
            partition.join(side, opposite)
    return partition.classes()


def _opposite(side: Members, of_rank: Mapping[int, list[Members]]) -> Iterable[Members]:
    """Return the groups that other groups connect to this group, member by member."""
    reached: dict[Members, set[int]] = {}
    for rank in side:
        for joining in of_rank[rank]:
            if joining == side:
                continue
            for neighbor in joining:
                for other in of_rank[neighbor]:
                    if neighbor != rank and other != joining and len(other) == len(side):
                        reached.setdefault(other, set()).add(rank)
    return [other for other, ranks in reached.items() if len(ranks) == len(side) and not {*other} & {*side}]


def _uniform_sizes(groups: Collection[Members]) -> set[int]:
    """Return the group sizes in which every rank belongs to equally many groups."""
    ranks = {rank for members in groups for rank in members}
    counts: dict[int, Counter[int]] = {}
    for members in groups:
        counts.setdefault(len(members), Counter()).update(members)
    return {size for size, by_rank in counts.items() if len(by_rank) == len(ranks) and len({*by_rank.values()}) == 1}
