"""What is worth knowing though nothing stalls: calls that do not fit, and ranks that are always last."""

from __future__ import annotations

from typing import Final

from otel_torchdist.stall.events import ArrivalsCompared, Event, Incident, MismatchFound, StragglerFound, StragglerGone
from otel_torchdist.stall.mismatch import Mismatch
from otel_torchdist.stall.silent_mismatch import SilentMismatches
from otel_torchdist.stall.stragglers import Stragglers
from otel_torchdist.stall.world import GroupView, Lane, Site, WorldSnapshot

MAX_STRAGGLERS: Final = 64
"""Of one run, over all its time: more of them say nothing more."""


class FindingWatch:
    """Compares the ranks of one run."""

    def __init__(self) -> None:
        """Nothing has been compared."""
        self._silent = SilentMismatches()
        self._stragglers = Stragglers()
        self._told = 0

    @property
    def wanted_calls(self) -> frozenset[tuple[Lane, int]]:
        """Windows of calls of other nodes' ranks that should be shown in full."""
        return self._silent.wanted

    def look(self, world: WorldSnapshot, run: int, seat: int, cause: Mismatch | None) -> list[Event]:
        """Take in a picture.

        Args:
            world: The picture.
            run: Its run's id, or what stands for it.
            seat: See `Incident`.
            cause: The mismatch that is the cause of a stall, and has been told as that.
        """
        if cause is not None:
            self._silent.told_as_stall(cause)
        found: list[Event] = [_mismatch(found, world, run, seat) for found in self._silent.look(world)]
        return found + self.look_for_stragglers(world, run, seat)

    def look_for_stragglers(self, world: WorldSnapshot, run: int, seat: int) -> list[Event]:
        """Take in a picture of this node's ranks, whose calls another agent compares; arguments as for `look`."""
        found: list[Event] = []
        for straggler in self._stragglers.look(world):
            if self._told < MAX_STRAGGLERS:
                self._told += 1
                name = f"straggler {straggler.lane.group} {straggler.rank} {world.taken_ns}"
                found.append(StragglerFound(Incident(run, name, seat), straggler, world))
        found += [StragglerGone(run, lane.group, rank) for lane, rank in self._stragglers.gone]
        if self._stragglers.lateness:
            found.append(ArrivalsCompared(run, tuple(self._stragglers.lateness)))
        return found


def _mismatch(found: Mismatch, world: WorldSnapshot, run: int, seat: int) -> MismatchFound:
    # With the time, for an agent that was started again may find it again.
    name = f"calls {site_name(found.site)} {world.taken_ns}"
    return MismatchFound(Incident(run, name, seat), found, _group_of(world, found.site), world)


def _group_of(world: WorldSnapshot, site: Site) -> GroupView | None:
    groups = (view.groups.get(site.lane.group) for view in world.in_order)
    return next((group for group in groups if group is not None), None)


def site_name(site: Site) -> str:
    """A name for a site that every agent gives it."""
    lane = site.lane
    meeting = f"{lane.source}>{lane.destination} tag {lane.tag}" if lane.is_point_to_point else lane.kind.name.lower()
    return f"{lane.group} {meeting} {site.sequence}"
