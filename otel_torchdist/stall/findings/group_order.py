"""Finds groups that ranks have created in another order although nothing stalls: their calls go with those of others.

Only where the members of a group have it under different numbers: they cannot have met. Two groups of the same number
whose members differ may both have come about, if they were created one after the other.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.world.group_names import CreatedGroups
from otel_torchdist.world.mismatch import Mismatch

REPORTED_AFTER_NS: Final = 12_000_000_000
"""With the usual threshold, a stall with this cause has been reported by then."""


class GroupOrder:
    """Compares the groups that the ranks of one run have created; reports once that they differ."""

    def __init__(self) -> None:
        self._compared = 0
        self._found: Mismatch | None = None
        self._found_ns = 0
        self._is_reported = False

    def find(self, world: WorldSnapshot, is_last: bool = False) -> list[Mismatch]:
        """What is to be reported now.

        Args:
            world: The snapshot.
            is_last: Whether the run is over: nothing is held back any more.
        """
        created = sum(len(view.groups) for view in world.ranks.values())
        if created != self._compared and self._found is None:
            self._compared = created
            self._found, self._found_ns = _difference(world), world.taken_ns
        if self._found is None or self._is_reported:
            return []
        if not is_last and world.taken_ns - self._found_ns < REPORTED_AFTER_NS:
            return []
        self._is_reported = True
        return [self._found]

    def mark_reported(self) -> None:
        """Note that a verdict has reported it."""
        self._is_reported = True


def _difference(world: WorldSnapshot) -> Mismatch | None:
    created = CreatedGroups(world.ranks.values())
    groups = {key: group for view in world.in_order for key, group in view.groups.items()}
    return next((found for group in groups.values() if (found := created.differ_in(group, is_new=False))), None)
