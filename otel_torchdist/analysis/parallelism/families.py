"""Families of process groups: groups of one size of which each rank is in exactly one, as along one axis of a mesh.

Members decide, not names: these differ between frameworks, and may be wrong.
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
    """Items in classes, which grow as items are joined."""

    def __init__(self, items: Iterable[_Item] = ()) -> None:
        """Start with each item in a class of its own."""
        self._parent: dict[_Item, _Item] = {item: item for item in items}

    def join(self, one: _Item, other: _Item) -> None:
        """Make one class of those of two items, which are added if they are new."""
        self._parent[self._root(one)] = self._root(other)

    def classes(self) -> list[list[_Item]]:
        """The classes, and the items of each, in the order in which items were added."""
        found: dict[_Item, list[_Item]] = {}
        for item in self._parent:
            found.setdefault(self._root(item), []).append(item)
        return list(found.values())

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
        groups: By first member.
        is_inferred: Whether some of them were not seen, because there are no records of their ranks.
    """

    groups: tuple[Members, ...]
    is_inferred: bool = False

    @property
    def size(self) -> int:
        """Ranks of each group."""
        return len(self.groups[0])

    @property
    def stride(self) -> int | None:
        """How far apart neighbours are; None if that is not the same everywhere."""
        strides = {after - before for members in self.groups for before, after in itertools.pairwise(members)}
        return strides.pop() if len(strides) == 1 else None

    def labels(self) -> list[int]:
        """By rank, which of the groups it is in."""
        found = [0] * (self.size * len(self.groups))
        for label, members in enumerate(self.groups):
            for rank in members:
                found[rank] = label
        return found


@dataclass(frozen=True, slots=True)
class Families:
    """How groups fall into families.

    Attributes:
        whole: Families that tile the world, by size and stride.
        rest: Groups that are in none, ascending.
    """

    whole: tuple[Family, ...]
    rest: tuple[Members, ...]


def families_of(groups: Mapping[Members, Collection[str]], world_size: int, unseen: Collection[int] = ()) -> Families:
    """Sort groups into families.

    In a mesh whose ranks are in order, groups with the same distances between their members belong together. In others
    such groups may be on different axes, so those belong together that are opposite sides of squares, and where groups
    are missing or are none of a mesh, those of one description.

    Args:
        groups: Descriptions of each group, by its members. Groups of one rank are left out.
        world_size: Ranks of the job.
        unseen: Ranks without records, whose groups may be missing here.
    """
    left = {members for members in groups if len(members) > 1 and members[-1] < world_size}
    whole: list[Family] = []

    def take(alike: Collection[Members]) -> None:
        family = _tiling(alike, world_size, frozenset(unseen))
        if family is not None:
            whole.append(family)
            left.difference_update(alike)

    for of_size in _by(left, len):
        classes = _by(of_size, _distances)
        if all(_tiling(alike, world_size, frozenset(unseen)) for alike in classes):
            for alike in classes:
                take(alike)
    if left:
        for alike in _by_squares([*left, *(members for family in whole for members in family.groups)]):
            take([members for members in alike if members in left])
    for size, text in sorted({(len(members), text) for members in left for text in groups[members] if text}):
        take([members for members in left if len(members) == size and text in groups[members]])
    for alike in _by(left, _distances):
        take(alike)
    whole.sort(key=lambda family: (family.size, family.stride or world_size, family.groups))
    return Families(tuple(whole), tuple(sorted(left)))


def _distances(members: Members) -> Members:
    return tuple(rank - members[0] for rank in members)


def _by(groups: Iterable[Members], key: Callable[[Members], object]) -> list[list[Members]]:
    found: dict[object, list[Members]] = {}
    for members in sorted(groups):
        found.setdefault(key(members), []).append(members)
    return list(found.values())


def _tiling(alike: Collection[Members], world_size: int, unseen: frozenset[int]) -> Family | None:
    """A family of these groups; those of ranks without records are added if their places follow from the others."""
    ranks = {rank for members in alike for rank in members}
    if not alike or len(ranks) != sum(map(len, alike)):
        return None
    if len(ranks) == world_size:
        return Family(tuple(sorted(alike)))
    size, stride = len(min(alike)), Family(tuple(alike)).stride
    if stride is None or world_size % (size * stride):
        return None
    firsts = [rank for rank in range(world_size) if rank // stride % size == 0]
    every = tuple(tuple(range(first, first + size * stride, stride)) for first in firsts)
    missing = {*every} - {*alike}
    is_sound = {*alike} <= {*every} and all(unseen.issuperset(members) for members in missing)
    return Family(every, is_inferred=True) if is_sound else None


def _by_squares(groups: Collection[Members]) -> list[list[Members]]:
    """Sort groups by the axis of the grid that they lie on, whatever the numbers of the ranks.

    Two groups lie on one axis if each member of one shares a group with another member of the other: these groups and
    they are opposite sides of squares. A grid can be divided into axes in no other way (the unique factors of a
    Cartesian product of graphs). Groups that contain others are left out: they are products of axes.
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
    """The groups that are joined to a group member by member."""
    reached: dict[Members, set[int]] = {}
    for rank in side:
        for joining in of_rank[rank]:
            if joining == side:
                continue
            for neighbour in joining:
                for other in of_rank[neighbour]:
                    if neighbour != rank and other != joining and len(other) == len(side):
                        reached.setdefault(other, set()).add(rank)
    return [other for other, ranks in reached.items() if len(ranks) == len(side) and not {*other} & {*side}]


def _uniform_sizes(groups: Collection[Members]) -> set[int]:
    """Sizes of which each rank that is in any group is in as many groups."""
    ranks = {rank for members in groups for rank in members}
    counts: dict[int, Counter[int]] = {}
    for members in groups:
        counts.setdefault(len(members), Counter()).update(members)
    return {size for size, of in counts.items() if len(of) == len(ranks) and len({*of.values()}) == 1}
