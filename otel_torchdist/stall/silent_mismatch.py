"""Finds calls that do not fit though nothing stalls: gloo, for one, adds up bytes of different types without a word.

Each is told once, and only when it has not been told as the cause of a stall meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_torchdist.stall.mismatch import Mismatch, compare, find_mismatch
from otel_torchdist.stall.world import Arrival, Lane, Progress, RankView, Site, WorldSnapshot
from otel_torchdist.tape.layout import RecordKind

LOOKS_APART_NS: Final = 1_000_000_000
TOLD_AFTER_NS: Final = 13_000_000_000
"""With the usual threshold a stall with this cause has been told by then."""
MAX_TOLD: Final = 64
"""Mismatches of one run; more of them say nothing more."""
_ANYWHERE: Final = 1 << 62


class SilentMismatches:
    """Watches one run."""

    def __init__(self) -> None:
        """Nothing has been found."""
        self._looked_ns = 0
        self._compared: dict[Lane, tuple[Progress, ...]] = {}
        self._found_ns: dict[Mismatch, int] = {}
        self._told: set[Lane] = set()

    def look(self, world: WorldSnapshot) -> list[Mismatch]:
        """The mismatches that are to be told now."""
        if world.taken_ns - self._looked_ns < LOOKS_APART_NS:
            return []
        self._looked_ns = world.taken_ns
        for lane, views in _lanes(world).items():
            if lane not in self._told and self._has_changed(lane, views):
                found = _find(lane, views)
                if found is not None:
                    self._note(found, world.taken_ns)
        return self._due(world.taken_ns)

    def told_as_stall(self, mismatch: Mismatch) -> None:
        """A verdict has said it."""
        self._told.add(mismatch.site.lane)
        self._found_ns = {found: since for found, since in self._found_ns.items() if found.site.lane not in self._told}

    def _has_changed(self, lane: Lane, views: list[RankView]) -> bool:
        progress = tuple(view.progress[lane] for view in views)
        before = self._compared.get(lane)
        self._compared[lane] = progress
        return before is None or any(one is not other for one, other in zip(before, progress, strict=False))

    def _note(self, found: Mismatch, now_ns: int) -> None:
        """Of one lane the first that was found counts."""
        if all(known.site.lane != found.site.lane for known in self._found_ns):
            self._found_ns[found] = now_ns

    def _due(self, now_ns: int) -> list[Mismatch]:
        due = [found for found, since in self._found_ns.items() if now_ns - since >= TOLD_AFTER_NS]
        due = due[: max(MAX_TOLD - len(self._told), 0)]
        for found in due:
            self.told_as_stall(found)
        return due


def _lanes(world: WorldSnapshot) -> Mapping[Lane, list[RankView]]:
    """The collectives of every group that more than one rank reports, with those ranks."""
    found: dict[Lane, list[RankView]] = {}
    for view in world.in_order:
        for lane, progress in view.progress.items():
            if lane.kind is RecordKind.OPERATION and not lane.is_point_to_point and progress.aligned:
                found.setdefault(lane, []).append(view)
    return {lane: views for lane, views in found.items() if len(views) > 1}


def _find(lane: Lane, views: list[RankView]) -> Mismatch | None:
    """The first place at which ranks are seen to differ: in complete windows, or among the latest calls."""
    by_index: dict[int, dict[int, tuple[int, tuple[Arrival, ...]]]] = {}
    for view in views:
        for window in view.windows.get(lane, ()):
            by_index.setdefault(window.number, {})[view.rank] = window.digest, window.arrivals
    for _, windows in sorted(by_index.items()):
        if len({digest for digest, _ in windows.values()}) > 1:
            found = _first_difference(lane, {rank: arrivals for rank, (_, arrivals) in windows.items()})
            if found is not None:
                return found
    return find_mismatch(views, Site(lane, _ANYWHERE))


def _first_difference(lane: Lane, calls: Mapping[int, tuple[Arrival, ...]]) -> Mismatch | None:
    for place in range(min(map(len, calls.values()))):
        here = {rank: arrivals[place] for rank, arrivals in calls.items()}
        found = compare(here, Site(lane, next(iter(here.values())).sequence))
        if found is not None:
            return found
    return None
