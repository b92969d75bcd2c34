"""Finds the axes of the parallel world: the families of groups along which its ranks form a grid.

A rank has one coordinate on each axis. A group along an axis holds the ranks that differ in that coordinate only. Other
groups are products of axes (all ranks of a data-parallel replica), or parts of products (the two ends of a pipeline).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.analysis.parallelism.families import Families, Family, Members, Partition

MAX_CANDIDATES: Final = 14
"""Upper bound on the families whose combinations are tried. Real jobs have fewer than ten."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks of a job as a grid.

    Attributes:
        world_size: Number of ranks in the job.
        axes: The axes, nearest neighbors first; empty if all groups have a single rank.
        coordinates: For each rank: its coordinate on each axis, then the index of its copy of the grid.
        copies: Number of grids of this shape in the world. Ranks of different copies share no axis.
    """

    world_size: int
    axes: tuple[Family, ...]
    coordinates: tuple[tuple[int, ...], ...]
    copies: int

    def span(self, members: Members) -> tuple[int, ...] | None:
        """Return the indices of the axes that a group spans completely, or None if it spans some only in part.

        The index after the last axis stands for the copies of the grid.
        """
        varying = tuple(
            axis for axis in range(len(self.axes) + 1) if len({self.coordinates[rank][axis] for rank in members}) > 1
        )
        sizes = [*(axis.size for axis in self.axes), self.copies]
        return varying if math.prod(sizes[axis] for axis in varying) == len(members) else None


def grid_of(families: Families, world_size: int, weights: Mapping[Family, float] | None = None) -> Grid:
    """Find the grid that covers the most ranks, and among these the grid with the most axes.

    Args:
        families: The families of groups.
        world_size: Number of ranks in the job.
        weights: Bytes sent in each family, to choose between grids with equally many axes.
    """
    weights = weights or {}
    candidates = sorted(families.whole, key=lambda family: -weights.get(family, 0))[:MAX_CANDIDATES]
    # A group of all ranks is the product of the other axes, if there are any.
    candidates = [family for family in candidates if family.size < world_size] or candidates
    labels = [family.labels() for family in candidates]
    orthogonal = {
        (a, b)
        for (a, labels_a), (b, labels_b) in itertools.combinations(enumerate(labels), 2)
        if len({*zip(labels_a, labels_b, strict=True)}) == world_size  # no two ranks share a group in both families
    }
    best: tuple[tuple[float, ...], tuple[int, ...], list[tuple[int, ...]]] = ((0, 0, 0, 0), (), [])
    for chosen in _combinations(len(candidates), orthogonal, [family.size for family in candidates], world_size):
        axes = [candidates[place] for place in chosen]
        product = math.prod(axis.size for axis in axes)
        weight = sum(weights.get(axis, 0) for axis in axes)
        evenly_spaced = sum(axis.stride is not None for axis in axes)
        score = (product, len(axes), weight, evenly_spaced)
        if score > best[0]:
            coordinates = _coordinates(axes, [labels[place] for place in chosen], world_size)
            if coordinates is not None:
                best = (score, chosen, coordinates)
    return _ordered([candidates[place] for place in best[1]], best[2], world_size)


def _combinations(
    count: int, orthogonal: set[tuple[int, int]], sizes: Sequence[int], world_size: int
) -> list[tuple[int, ...]]:
    """Return all sets of mutually orthogonal candidates whose grid may fit in the world."""
    combinations: list[tuple[int, ...]] = []

    def extend(chosen: tuple[int, ...], product: int) -> None:
        """Record a set of candidates, then all its extensions by later candidates."""
        if chosen:
            combinations.append(chosen)
        for place in range(chosen[-1] + 1 if chosen else 0, count):
            fits = world_size % (product * sizes[place]) == 0
            if fits and all((other, place) in orthogonal for other in chosen):
                extend((*chosen, place), product * sizes[place])

    extend((), 1)
    return combinations


def _coordinates(axes: Sequence[Family], labels: Sequence[list[int]], world_size: int) -> list[tuple[int, ...]] | None:
    """Return each rank's coordinates and its copy of the grid, or None if these families do not form a grid.

    Ranks have the same coordinate on an axis if the groups of the other axes connect them.
    """
    copies = _connected(labels, world_size)
    by_axis: list[list[int]] = []
    for nth, axis in enumerate(axes):
        components = _connected([*labels[:nth], *labels[nth + 1 :]], world_size)
        coordinates = _numbered_within(components, copies)
        if max(coordinates) >= axis.size:
            return None
        if any(len({coordinates[rank] for rank in members}) != axis.size for members in axis.groups):
            return None
        by_axis.append(coordinates)
    rows = list(zip(*by_axis, copies, strict=True))
    return rows if len({*rows}) == world_size else None


def _connected(labels: Sequence[Sequence[int]], world_size: int) -> list[int]:
    """Return each rank's connected component: groups connect their members, directly or through other groups."""
    partition = Partition(range(world_size))
    for of_family in labels:
        first: dict[int, int] = {}
        for rank, label in enumerate(of_family):
            partition.join(rank, first.setdefault(label, rank))
    components = [0] * world_size
    for number, ranks in enumerate(partition.classes()):
        for rank in ranks:
            components[rank] = number
    return components


def _numbered_within(components: Sequence[int], copies: Sequence[int]) -> list[int]:
    """Renumber components from 0 within each copy of the grid, by their first ranks."""
    numbers: dict[int, dict[int, int]] = {}
    renumbered: list[int] = []
    for component, copy in zip(components, copies, strict=True):
        known = numbers.setdefault(copy, {})
        renumbered.append(known.setdefault(component, len(known)))
    return renumbered


def _ordered(axes: Sequence[Family], coordinates: Sequence[tuple[int, ...]], world_size: int) -> Grid:
    order = sorted(range(len(axes)), key=lambda place: (axes[place].stride or world_size, axes[place].groups))
    if not axes:
        return Grid(world_size, (), tuple((rank,) for rank in range(world_size)), world_size)
    copies = max(row[-1] for row in coordinates) + 1
    rows = tuple((*(row[place] for place in order), row[-1]) for row in coordinates)
    return Grid(world_size, tuple(axes[place] for place in order), rows, copies)
