"""The axes of the parallel world: the families of groups along which its ranks form a grid.

A rank has one coordinate on each axis; the groups along an axis hold the ranks that differ in that coordinate alone.
Other groups are products of axes (all ranks of a data-parallel replica), or parts (the two ends of a pipeline).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.analysis.parallelism.families import Families, Family, Members, Partition

MAX_CANDIDATES: Final = 14
"""Families of which all combinations are tried; real jobs have fewer than ten."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of a job as a grid.

    Attributes:
        world_size: Ranks of the job.
        axes: The axes, the one with the nearest neighbours first; empty if there are no groups but single ranks.
        coordinates: By rank, its coordinate on each axis, and as the last one which copy of the grid it is in.
        copies: How many grids of this shape the world holds: ranks of different ones share no axis.
    """

    world_size: int
    axes: tuple[Family, ...]
    coordinates: tuple[tuple[int, ...], ...]
    copies: int

    def span(self, members: Members) -> tuple[int, ...] | None:
        """The axes whose product a group is, by their places; None if it is a part of such a product.

        The place behind the last axis stands for the copies of the grid.
        """
        varying = tuple(
            axis for axis in range(len(self.axes) + 1) if len({self.coordinates[rank][axis] for rank in members}) > 1
        )
        sizes = [*(axis.size for axis in self.axes), self.copies]
        return varying if math.prod(sizes[axis] for axis in varying) == len(members) else None


def grid_of(families: Families, world_size: int, weights: Mapping[Family, float] | None = None) -> Grid:
    """Find the axes: as many as possible, of which the grid covers as much of the world as possible.

    Args:
        families: The families of groups.
        world_size: Ranks of the job.
        weights: How much was communicated in each family, which decides between grids of as many axes.
    """
    weights = weights or {}
    candidates = sorted(families.whole, key=lambda family: -weights.get(family, 0))[:MAX_CANDIDATES]
    # A group of all ranks is the product of what other groups there are.
    candidates = [family for family in candidates if family.size < world_size] or candidates
    labels = [family.labels() for family in candidates]
    orthogonal = {
        (a, b)
        for (a, one), (b, other) in itertools.combinations(enumerate(labels), 2)
        if len({*zip(one, other, strict=True)}) == world_size  # no two ranks are in one group of both
    }
    best: tuple[tuple[float, ...], tuple[int, ...], list[tuple[int, ...]]] = ((0, 0, 0, 0), (), [])
    for chosen in _combinations(len(candidates), orthogonal, [one.size for one in candidates], world_size):
        axes = [candidates[place] for place in chosen]
        product = math.prod(axis.size for axis in axes)
        weight = sum(weights.get(axis, 0) for axis in axes)
        chained = sum(axis.stride is not None for axis in axes)
        score = (product, len(axes), weight, chained)
        if score > best[0]:
            coordinates = _coordinates(axes, [labels[place] for place in chosen], world_size)
            if coordinates is not None:
                best = (score, chosen, coordinates)
    return _ordered([candidates[place] for place in best[1]], best[2], world_size)


def _combinations(
    count: int, orthogonal: set[tuple[int, int]], sizes: Sequence[int], world_size: int
) -> list[tuple[int, ...]]:
    """All sets of candidates that are orthogonal to each other, and whose grid may fit in the world."""
    found: list[tuple[int, ...]] = []

    def extend(chosen: tuple[int, ...], product: int) -> None:
        if chosen:
            found.append(chosen)
        for place in range(chosen[-1] + 1 if chosen else 0, count):
            fits = world_size % (product * sizes[place]) == 0
            if fits and all((other, place) in orthogonal for other in chosen):
                extend((*chosen, place), product * sizes[place])

    extend((), 1)
    return found


def _coordinates(axes: Sequence[Family], labels: Sequence[list[int]], world_size: int) -> list[tuple[int, ...]] | None:
    """By rank, its coordinates and its copy of the grid; None if these families form no grid.

    Ranks have the same coordinate on an axis if the groups of the other axes connect them.
    """
    copies = _connected(labels, world_size)
    found: list[list[int]] = []
    for nth, axis in enumerate(axes):
        classes = _connected([*labels[:nth], *labels[nth + 1 :]], world_size)
        coordinates = _numbered_within(classes, copies)
        if max(coordinates) >= axis.size:
            return None
        if any(len({coordinates[rank] for rank in members}) != axis.size for members in axis.groups):
            return None
        found.append(coordinates)
    rows = list(zip(*found, copies, strict=True))
    return rows if len({*rows}) == world_size else None


def _connected(labels: Sequence[Sequence[int]], world_size: int) -> list[int]:
    """By rank, the number of its class: ranks that groups connect, directly or through others, are in one class."""
    partition = Partition(range(world_size))
    for of_family in labels:
        first: dict[int, int] = {}
        for rank, label in enumerate(of_family):
            partition.join(rank, first.setdefault(label, rank))
    found = [0] * world_size
    for number, ranks in enumerate(partition.classes()):
        for rank in ranks:
            found[rank] = number
    return found


def _numbered_within(classes: Sequence[int], copies: Sequence[int]) -> list[int]:
    """Number classes anew in each copy of the grid, by their first ranks."""
    numbers: dict[int, dict[int, int]] = {}
    found: list[int] = []
    for one, copy in zip(classes, copies, strict=True):
        known = numbers.setdefault(copy, {})
        found.append(known.setdefault(one, len(known)))
    return found


def _ordered(axes: Sequence[Family], coordinates: Sequence[tuple[int, ...]], world_size: int) -> Grid:
    order = sorted(range(len(axes)), key=lambda place: (axes[place].stride or world_size, axes[place].groups))
    if not axes:
        return Grid(world_size, (), tuple((rank,) for rank in range(world_size)), world_size)
    copies = max(row[-1] for row in coordinates) + 1
    rows = tuple((*(row[place] for place in order), row[-1]) for row in coordinates)
    return Grid(world_size, tuple(axes[place] for place in order), rows, copies)
