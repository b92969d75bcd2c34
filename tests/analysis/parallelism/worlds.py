"""Constructed parallel worlds: the groups of a mesh with known axes, with ranks in order or shuffled."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from otel_torchdist.analysis.parallelism.families import Members


@dataclass
class MeshWorld:
    """A mesh, and the groups that a framework creates on it.

    Attributes:
        sizes: Ranks along each axis, the innermost first.
        seed: Shuffles the ranks; None for ranks in order.
        groups: Descriptions of each group, by members.
    """

    sizes: Sequence[int]
    seed: int | None = None
    groups: dict[Members, set[str]] = field(default_factory=dict[Members, set[str]])

    def __post_init__(self) -> None:
        self.world_size = math.prod(self.sizes)
        self.numbers = list(range(self.world_size))
        if self.seed is not None:
            random.Random(self.seed).shuffle(self.numbers)

    def along(self, *axes: int) -> list[Members]:
        """Return the groups of ranks that differ on these axes only."""
        fixed = [range(1) if axis in axes else range(size) for axis, size in enumerate(self.sizes)]
        varying = [range(size) if axis in axes else range(1) for axis, size in enumerate(self.sizes)]
        return [tuple(sorted(self._ranks(coordinates, varying))) for coordinates in itertools.product(*fixed)]

    def add(self, description: str, *axes: int) -> MeshWorld:
        """Create groups along the product of axes."""
        for members in self.along(*axes):
            self.groups.setdefault(members, set()).add(description)
        return self

    def _ranks(self, coordinates: Sequence[int], varying: Sequence[range]) -> Iterator[int]:
        for offsets in itertools.product(*varying):
            number, stride = 0, 1
            for coordinate, offset, size in zip(coordinates, offsets, self.sizes, strict=True):
                number, stride = number + (coordinate + offset) * stride, stride * size
            yield self.numbers[number]
