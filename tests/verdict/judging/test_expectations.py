"""A wait that ranks have announced excuses no other rank."""

from otel_torchdist.model.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import Watching
from tests.support.worlds.fake_world import FakeWorld, group_of

THREE = group_of(0, 1, 2, description="default_pg")


def test_expectation_excuses_no_other_rank_at_the_same_place() -> None:
    """Rank 0 evaluates and has announced it; rank 2, which should be waiting too, hangs: it is named, alone."""
    world = FakeWorld(3)
    world.meet(THREE, 0.1)
    world.ranks[1].enter(THREE, 1.0, "barrier")
    world.ranks[0].expects_until_s = 1e6
    watching = Watching(world).until(20.0)
    assert [(event.verdict.kind, event.verdict.ranks) for _, event in watching.verdicts] == [(VerdictKind.ABSENT, (2,))]


def test_expectation_does_not_hide_a_frozen_rank() -> None:
    """Rank 0 is held by a debugger, and has announced it; rank 2 is stopped, and has not."""
    world = FakeWorld(3)
    world.ranks[1].enter(THREE, 1.0, "barrier")
    world.ranks[0].expects_until_s = 1e6
    world.ranks[0].stopped = "t"
    world.ranks[2].stopped = "T"
    watching = Watching(world).until(20.0)
    assert {(event.verdict.kind, event.verdict.ranks) for _, event in watching.verdicts} == {(VerdictKind.FROZEN, (2,))}


def test_expectation_does_not_hide_another_stall() -> None:
    """Two independent stalls, and the older one is expected: the other one is reported."""
    world = FakeWorld(4)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[2].enter(group_of(2, 3), 2.0)
    world.ranks[1].expects_until_s = 1e6
    watching = Watching(world).until(20.0)
    assert {event.verdict.ranks for _, event in watching.verdicts} == {(3,)}
