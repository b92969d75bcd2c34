"""The verdict: which ranks hold an operation up, and on what evidence. A pure function of a picture of the ranks.

Blame follows the waiting to its root: a rank that is missing here because it waits elsewhere is not blamed; the
one for which it waits there is. Nothing is said that the records do not show.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from otel_torchdist.stall.places import Place, place_of
from otel_torchdist.stall.roll_call import RollCall, Standing, call_roll, open_by_site, since_of
from otel_torchdist.stall.world import ANYBODY, GroupView, Lane, OperationView, RankView, Site, WorldSnapshot

SETTLED_NS: Final = 1_000_000_000
"""A rank that has been in an operation for less than this passes through it; it does not wait there."""


class _Hop(NamedTuple):
    """A step of the search: at `site` it went on to an operation in which the missing `rank` waits.

    Attributes:
        site: Where the rank is missing.
        rank: The rank.
        is_blocking: Whether one of its threads is seen to be in that operation.
    """

    site: Site
    rank: int
    is_blocking: bool


class VerdictKind(enum.Enum):
    """What holds an operation up; the value is the attribute's."""

    DEAD = "dead"
    ABSENT = "absent"
    DEVICE = "device"
    TRANSPORT = "transport"
    UNKNOWN = "unknown"


class Doubt(enum.Enum):
    """Why a verdict is `unknown`, or says less than it could."""

    SILENT = "not all ranks report"
    RECORDS_LOST = "records of it were overwritten before they were read"
    UNALIGNED = "its sequence was not counted from the group's first operation"
    ANY_SOURCE = "it takes from any source"
    NO_GROUP = "its group is not known"
    CYCLE = "they wait for each other"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds one operation up.

    Attributes:
        kind: What it is.
        site: The operation at which the search for the cause ended.
        operation: Its name.
        group: Its group, None when not known.
        ranks: Those whom the verdict names, ascending.
        roll: The standing of every member.
        since_ns: Since when the first rank waits there.
        doubt: Why it is unknown; None for other kinds.
        places: Where the ranks are; see `locate`.
        failures: By rank, the type of the exception that ended it or its call.
    """

    kind: VerdictKind
    site: Site
    operation: str
    group: GroupView | None
    ranks: tuple[int, ...]
    roll: RollCall
    since_ns: int
    doubt: Doubt | None = None
    places: Mapping[int, Place] = field(default_factory=dict[int, Place])
    failures: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ranks that have entered and not come out."""
        return self.roll.ranks(Standing.WAITING)

    @property
    def reporting(self) -> int:
        """How many members report: the k of `k of n`."""
        return len(self.roll.standings)

    @property
    def members(self) -> int:
        """How many members there are: the n of `k of n`."""
        return len(self.roll.members)

    def says_the_same_as(self, other: Verdict) -> bool:
        """Whether both blame the same ranks for the same thing."""
        return (self.kind, self.site, self.ranks, self.doubt) == (other.kind, other.site, other.ranks, other.doubt)


def locate(world: WorldSnapshot, verdict: Verdict) -> Verdict:
    """The verdict with the place of every member that reports."""
    members = {rank: world.ranks[rank] for rank in verdict.roll.standings}
    places = {rank: place_of(view, view.at(verdict.site), world.taken_ns) for rank, view in members.items()}
    failures = {rank: failure for rank, view in members.items() if (failure := _failure(view, verdict.site))}
    return replace(verdict, places=places, failures=failures)


def _failure(view: RankView, site: Site) -> str:
    if view.failure:
        return view.failure
    progress = view.progress.get(site.lane)
    return progress.failure if progress is not None and progress.failed == site.sequence else ""


class Judge:
    """Judges the operations of one picture."""

    def __init__(self, world: WorldSnapshot, threshold_ns: int) -> None:
        """Prepare.

        Args:
            world: The picture.
            threshold_ns: For how long all ranks must have been in an operation before it is called stuck.
        """
        self._world = world
        self._threshold_ns = threshold_ns
        self._settled_ns = min(SETTLED_NS, threshold_ns // 2)
        self._open_at = open_by_site(world)

    def verdict_on(self, site: Site) -> Verdict | None:
        """Find what holds up the operation at `site`, in which at least one rank waits or has failed.

        Returns:
            None when all ranks have come and have not been there for the threshold: it moves.
        """
        return self._search(site, (), {})

    def _search(self, site: Site, path: tuple[_Hop, ...], seen: dict[Site, Verdict | None]) -> Verdict | None:
        if site not in seen:
            seen[site] = None  # so that no maze of waits is walked twice
            seen[site] = self._search_at(site, path, seen)
        return seen[site]

    def _search_at(self, site: Site, path: tuple[_Hop, ...], seen: dict[Site, Verdict | None]) -> Verdict | None:
        roll = self._roll(site)
        dead = self._first_dead(roll)
        if dead:
            return _verdict(VerdictKind.DEAD, roll, dead)
        doubt = _doubt_of_site(roll)
        if doubt is not None:
            return _verdict(VerdictKind.UNKNOWN, roll, (), doubt)
        missing = roll.ranks(Standing.ABSENT, Standing.ENDED, Standing.QUEUED)
        if missing:
            return self._blame(roll, missing, path, seen)
        if Standing.UNSURE in roll.standings.values():
            return _verdict(VerdictKind.UNKNOWN, roll, (), Doubt.RECORDS_LOST)
        if roll.silent:
            return _verdict(VerdictKind.UNKNOWN, roll, (), Doubt.SILENT)
        raised = roll.ranks(Standing.RAISED)
        if raised:
            return _verdict(VerdictKind.ABSENT, roll, raised)
        if self._world.taken_ns - roll.last_entered_ns < self._threshold_ns:
            return None
        return _verdict(VerdictKind.TRANSPORT, roll, roll.ranks(Standing.FAILED))

    def _first_dead(self, roll: RollCall) -> tuple[int, ...]:
        """Those who died first: launchers then end the others."""
        died = {rank: self._world.ranks[rank].gone_since_ns or 0 for rank in roll.ranks(Standing.DEAD)}
        return tuple(rank for rank, seen_ns in died.items() if seen_ns == min(died.values()))

    def _blame(
        self, roll: RollCall, missing: tuple[int, ...], path: tuple[_Hop, ...], seen: dict[Site, Verdict | None]
    ) -> Verdict:
        """Blame those who are missing and do not wait elsewhere; else whoever those wait for."""
        held_up = {rank: self._follow(roll.site, rank, path, seen) for rank in missing}
        guilty = tuple(rank for rank, causes in held_up.items() if not causes)
        absent = tuple(rank for rank in guilty if roll.standings[rank] is not Standing.QUEUED)
        if guilty:
            return _verdict(VerdictKind.ABSENT if absent else VerdictKind.DEVICE, roll, absent or guilty)
        return min(itertools.chain.from_iterable(held_up.values()), key=urgency)

    def _follow(self, site: Site, rank: int, path: tuple[_Hop, ...], seen: dict[Site, Verdict | None]) -> list[Verdict]:
        """What keeps a rank from coming to `site`. Nothing, if it only passes through operations that move."""
        causes: list[Verdict | None] = []
        for operation in self._waits_of(self._world.ranks[rank]):
            hops = (*path, _Hop(site, rank, operation.record.is_blocking))
            circle = tuple(itertools.dropwhile(lambda hop, target=operation.site: hop.site != target, hops))
            causes.append(self._judge_circle(circle) if circle else self._search(operation.site, hops, seen))
        return [cause for cause in causes if cause is not None]

    def _waits_of(self, view: RankView) -> list[OperationView]:
        """Where a rank waits: in each lane the first operation; what comes after waits for that.

        What it has in flight counts only when it is not seen to block: torch's C++ code waits unseen.
        """
        settled = self._world.taken_ns - self._settled_ns
        waits = [operation for operation in view.open if view.waits_in(operation) and since_of(operation) <= settled]
        blocking = [operation for operation in waits if operation.record.is_blocking]
        first: dict[Lane, OperationView] = {}
        for operation in blocking or waits:
            first.setdefault(operation.site.lane, operation)
        return list(first.values())

    def _judge_circle(self, hops: tuple[_Hop, ...]) -> Verdict:
        """Ranks that wait for each other; the same verdict from wherever the circle was entered.

        A rank that is not seen to block may be busy with something else. If it is the only one, it is absent.
        """
        free = [hop for hop in hops if not hop.is_blocking]
        if len(free) == 1:
            return _verdict(VerdictKind.ABSENT, self._roll(free[0].site), (free[0].rank,))
        first = min((self._roll(hop.site) for hop in hops), key=lambda roll: (roll.since_ns, roll.site))
        return _verdict(VerdictKind.UNKNOWN, first, tuple(sorted({hop.rank for hop in hops})), Doubt.CYCLE)

    def _roll(self, site: Site) -> RollCall:
        return call_roll(self._world, site, self._open_at.get(site, {}))


def urgency(verdict: Verdict) -> tuple[int, int, Site]:
    """Which of several verdicts comes first: the firmest, then the one that has waited longest."""
    return list(VerdictKind).index(verdict.kind), verdict.since_ns, verdict.site


def _doubt_of_site(roll: RollCall) -> Doubt | None:
    if roll.group is None:
        return Doubt.NO_GROUP
    lane = roll.site.lane
    if lane.is_point_to_point and lane.source == ANYBODY:
        return Doubt.ANY_SOURCE
    return None if roll.aligned else Doubt.UNALIGNED


def _verdict(kind: VerdictKind, roll: RollCall, ranks: tuple[int, ...], doubt: Doubt | None = None) -> Verdict:
    return Verdict(
        kind=kind,
        site=roll.site,
        operation=roll.operation,
        group=roll.group,
        ranks=ranks,
        roll=roll,
        since_ns=roll.since_ns,
        doubt=doubt,
    )
