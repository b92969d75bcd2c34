"""The verdict on a run at its last moment, in one look: what a watch would have said that had seen it come."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from otel_torchdist.agent.lives import Life
from otel_torchdist.cli.diagnose.last_moment import LastMoment
from otel_torchdist.stall.compiling import CompileExcuses
from otel_torchdist.stall.deaths import torn_out_of
from otel_torchdist.stall.judge import Judge
from otel_torchdist.stall.rules import StallRules, is_expected
from otel_torchdist.stall.standstill import Standstill
from otel_torchdist.stall.verdict import Verdict, VerdictKind, locate, urgency
from otel_torchdist.stall.waits import left_behind, waits_of
from otel_torchdist.stall.world import Lane, Site, WorldSnapshot, life_in

_OF_DEATHS: Final = (VerdictKind.MISMATCHED, VerdictKind.DEAD)
_OF_FAILURES: Final = (*_OF_DEATHS, VerdictKind.ABSENT)


def judge(moment: LastMoment, rules: StallRules) -> Verdict | None:
    """The verdict with its places; None when nothing had stalled and nobody was left behind.

    Args:
        moment: The run.
        rules: Which waits are stalls.
    """
    world = moment.world
    verdict_on = Judge(world, rules.threshold_ns).verdict_on
    found = _of_stalls(world, rules)
    found += _of_kinds(_OF_DEATHS, (verdict_on(site) for site in left_behind(world, dict(moment.signs))))
    failures = _of_kinds(_OF_FAILURES, (verdict_on(site) for site in _torn(world)))
    # Who is not seen may have thrown these out.
    found += [verdict for verdict in failures if verdict.kind is not VerdictKind.ABSENT or not verdict.roll.silent]
    best = min(found, key=urgency, default=None)
    return locate(world, best) if best is not None else None


def stalled_verdict(world: WorldSnapshot, rules: StallRules) -> Verdict | None:
    """The verdict on what had stalled in a picture; None when nothing had, or it was expected."""
    return min(_of_stalls(world, rules), key=urgency, default=None)


def _of_stalls(world: WorldSnapshot, rules: StallRules) -> list[Verdict]:
    judge = Judge(world, rules.threshold_ns)
    stalls = [judge.verdict_on(site) for site in _stalled(world, rules)]
    return [verdict for verdict in stalls if verdict is not None and not _is_excused(world, verdict, rules)]


def age_ns(verdict: Verdict, moment_ns: int) -> int:
    """For how long the first rank has waited: until the moment, or until the last of those who waited was torn out."""
    ends = [operation.record.completed_ns for operation in verdict.roll.waits.values()]
    known = [end for end in ends if end is not None]
    return (max(known) if len(known) == len(ends) else moment_ns) - verdict.since_ns


def _is_excused(world: WorldSnapshot, verdict: Verdict, rules: StallRules) -> bool:
    """Whether ranks expect the wait or compile. What was expected counts as a wait from when it no longer was."""
    lately = dataclasses.replace(world, taken_ns=world.taken_ns - rules.threshold_ns)
    return is_expected(lately, verdict) or CompileExcuses(rules.threshold_ns).excuse(world, verdict)


def _of_kinds(kinds: tuple[VerdictKind, ...], verdicts: Iterable[Verdict | None]) -> list[Verdict]:
    return [verdict for verdict in verdicts if verdict is not None and verdict.kind in kinds]


def _stalled(world: WorldSnapshot, rules: StallRules) -> Iterable[Site]:
    """The first operation of each lane that has waited for too long; what comes after waits for that."""
    first: dict[Lane, Site] = {}
    waits, standstill = waits_of(world), Standstill()
    standstill.look(world, waits)
    ran_until_ns = standstill.ran_until_ns(world.taken_ns)
    for wait in waits:
        site = wait.operation.site
        if rules.is_stalled(wait, ran_until_ns - wait.since_ns):
            first[site.lane] = min(first.get(site.lane, site), site)
    return first.values()


def _torn(world: WorldSnapshot) -> set[Site]:
    """The operations out of which ranks that failed were torn."""
    failed = [view for view in world.ranks.values() if life_in(view) is Life.FAILED]
    return {torn.site for view in failed if (torn := torn_out_of(view)) is not None}
