"""Ranks whose agents do not answer: when they are named, and when another rank is."""

from __future__ import annotations

import dataclasses

from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.stall.events import Leads, Occasion
from otel_torchdist.verdict.model import Doubt
from otel_torchdist.verdict.wording.sentence import sentence
from tests.support.worlds.detectors import LOCAL, Accompanied, stalled, with_others
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import named, the_verdict


def cut_off(world: FakeWorld, visible: tuple[int, ...], **hosts: int) -> WorldSnapshot:
    """A snapshot without the ranks of agents that do not answer."""
    snapshot = world.snapshot(30.0, visible)
    return dataclasses.replace(snapshot, unreachable={rank: host for host, rank in hosts.items()})


def test_unreachable_ranks_are_named() -> None:
    """All visible ranks wait, and the others are unreachable: they are named, with their hosts."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1), beta=2, alpha=3))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.UNREACHABLE, (2, 3), ("alpha", "beta"))
    assert sentence(verdict, 25.0) == (
        "ranks 2-3 are unreachable (the agents on alpha, beta do not answer), "
        "and all_reduce (sequence 2, default_pg) has been blocked for 25.0 s; 2 of 4 ranks wait. 2 of 4 ranks report"
    )


def test_rank_that_is_seen_to_be_absent_is_blamed_first() -> None:
    """A visible rank that is missing is named, not those of which nothing is known."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1, 2), beta=3))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.ABSENT, (2,), ())


def test_rank_that_is_seen_to_be_dead_is_blamed_first() -> None:
    """A visible rank that has died is named too."""
    world, _ = stalled()
    world.ranks[2].die(6.0)
    assert named(cut_off(world, (0, 1, 2), beta=3)) == (VerdictKind.DEAD, (2,))


def test_silent_is_not_unreachable() -> None:
    """Ranks that no agent has ever reported are silent; an unreachable rank that is not a member is not named."""
    world, _ = stalled()
    verdict = the_verdict(cut_off(world, (0, 1), beta=9))
    assert (verdict.kind, verdict.ranks, verdict.doubt) == (VerdictKind.UNKNOWN, (), Doubt.SILENT)


def test_peer_out_of_reach() -> None:
    """A receive from a rank whose agent does not answer leads to that rank."""
    world = FakeWorld(2)
    number = world.ranks[0].enter(
        group_of(0, 1), 5.0, "recv", flags=Flag.POINT_TO_POINT | Flag.END_BY_WAIT, peer=1, blocking=False
    )
    world.ranks[0].wait_for(number, 5.1)
    verdict = the_verdict(cut_off(world, (0,), beta=1))
    assert (verdict.kind, verdict.ranks, verdict.hosts) == (VerdictKind.UNREACHABLE, (1,), ("beta",))


def test_reach_that_comes_back_changes_the_verdict() -> None:
    """Unreachable comes first; when the other agent answers again the late rank is reported."""
    world, _ = stalled()
    away = {2: "beta", 3: "beta"}
    lost = Accompanied(world, lambda seen: Leads(dataclasses.replace(seen, unreachable=away)), only=LOCAL).until(17.0)
    lost.peer_agents.role = with_others(world)
    lost.until(20.0)
    assert [(event.occasion, event.verdict.kind, event.verdict.ranks) for _, event in lost.verdicts] == [
        (Occasion.OPENED, VerdictKind.UNREACHABLE, (2, 3)),
        (Occasion.CHANGED, VerdictKind.ABSENT, (2,)),
    ]
