"""Finds among all stalled operations of a run the one that holds up the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.stall.judge import Judge
from otel_torchdist.stall.rules import is_expected
from otel_torchdist.stall.verdict import Verdict, VerdictKind, urgency
from otel_torchdist.stall.waits import Wait, died_in, left_behind, torn_apart
from otel_torchdist.stall.world import Lane, Site, WorldSnapshot

MAX_CANDIDATES: Final = 64
AT_ONCE: Final = (VerdictKind.MISMATCHED, VerdictKind.DEAD)
"""Verdicts that are given whatever the age of the waits."""


class RootFinder:
    """Remembers of one run only what a single picture does not show: deaths that were told."""

    def __init__(self, threshold_ns: int) -> None:
        """Operations that all have entered are stuck after `threshold_ns`."""
        self._threshold_ns = threshold_ns
        self._death_told = False

    def death_told(self) -> None:
        """A verdict `dead` has been given: the deaths that follow are its consequences."""
        self._death_told = True

    def find(self, world: WorldSnapshot, stalled: list[Wait], current: Verdict | None) -> Verdict | None:
        """The verdict on the operation that holds up all others, as far as the records show.

        Args:
            world: The picture.
            stalled: Waits beyond the threshold, the longest first.
            current: The verdict that was given last on an incident that is still on.

        Returns:
            None when nothing stalls, or when the root has all its ranks and is about to end.
        """
        deaths, last_words = set[Site](), set[Site]()
        if not self._death_told:
            deaths = left_behind(world, _alive_at(world)) | torn_apart(world)
            last_words = died_in(world)
        if not stalled and not deaths and not last_words and current is None:
            return None
        judge = Judge(world, self._threshold_ns)
        kept = judge.verdict_on(current.site) if current is not None else None
        if current is not None and kept is None:
            return None
        verdicts = [kept, *(judge.verdict_on(site) for site in _first_of_each_lane(stalled))]
        # Who died first is not known where all were gone at once; that their calls did not fit is.
        explaining = {site: judge.verdict_on(site) for site in deaths | last_words}
        verdicts += [
            found
            for site, found in explaining.items()
            if found is not None
            and (found.kind is VerdictKind.MISMATCHED or (found.kind is VerdictKind.DEAD and site in deaths))
        ]
        candidates = [verdict for verdict in verdicts if verdict is not None]
        unexpected = [verdict for verdict in candidates if _blames(verdict) and not is_expected(world, verdict)]
        # What is expected to take long does not hide another rank that is not.
        best = min(unexpected or candidates, key=urgency, default=None)
        if current is None or kept is None or best is None:
            return best
        # Among equals the one that was told stays.
        return kept if kept.site == current.site and kept.kind is best.kind else best

    def held_up(self, world: WorldSnapshot, waits: list[Wait], verdict: Verdict) -> list[Wait]:
        """Those of some waits that lead to a verdict for which nobody waits until the threshold."""
        if verdict.kind not in AT_ONCE or not waits:
            return []
        judge = Judge(world, self._threshold_ns)
        leads = {site: judge.verdict_on(site) for site in _first_of_each_lane(waits)}
        lanes = {site.lane for site, found in leads.items() if found is not None and found.says_the_same_as(verdict)}
        return [wait for wait in waits if wait.operation.site.lane in lanes]


def _blames(verdict: Verdict) -> bool:
    return verdict.kind is not VerdictKind.UNKNOWN and bool(verdict.ranks)


def _alive_at(world: WorldSnapshot) -> dict[int, int]:
    return {rank: view.seen_alive_ns for rank, view in world.ranks.items() if view.seen_alive_ns}


def _first_of_each_lane(stalled: Iterable[Wait]) -> list[Site]:
    """In a lane only the first operation can be a cause; what comes after waits for that."""
    first: dict[Lane, Site] = {}
    for wait in stalled:
        site = wait.operation.site
        if site.lane not in first and len(first) == MAX_CANDIDATES:
            break
        first[site.lane] = min(first.get(site.lane, site), site)
    return list(first.values())
