"""Ranks that cannot run: when they are frozen, and how that is worded."""

import pytest

from otel_torchdist.verdict.model import VerdictKind
from otel_torchdist.verdict.wording.sentence import sentence
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.sentences import late_world, spoken, the_verdict


@pytest.mark.parametrize(("state", "how"), [("T", "stopped by a signal"), ("t", "held by a debugger")])
def test_stopped_process_is_frozen(state: str, how: str) -> None:
    """A missing rank that the kernel does not let run is frozen, and the sentence gives the reason."""
    world = late_world(2)
    world.ranks[2].stopped, world.ranks[2].stopped_since_s = state, 19.0
    snapshot = world.snapshot(20.0)
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.FROZEN, (2,))
    where = "has not entered all_reduce (sequence 2, default_pg) for 10.0 s; it was last in all_reduce"
    assert spoken(snapshot, verdict).startswith(f"rank 2 is frozen ({how}) and {where}")


def test_short_uninterruptible_sleep_is_not_frozen() -> None:
    """A process that reads from a disk sleeps uninterruptibly for moments; after three seconds it is frozen."""
    world = late_world(2)
    world.ranks[2].stopped, world.ranks[2].stopped_since_s = "D", 20.0
    assert the_verdict(world.snapshot(22.9)).kind is VerdictKind.ABSENT
    assert the_verdict(world.snapshot(23.0)).kind is VerdictKind.FROZEN


def test_frozen_inside_an_operation() -> None:
    """All have entered, and one of them cannot run: it is frozen, not the network."""
    world = late_world()
    world.ranks[1].stopped = "T"
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.FROZEN, (1,))
    assert sentence(verdict, 15).startswith(
        "rank 1 is frozen (stopped by a signal) inside all_reduce (sequence 2, default_pg), "
        "which has been blocked for 15.0 s"
    )


def test_frozen_rank_elsewhere_is_found() -> None:
    """Rank 1 is missing because it waits for rank 2, which is frozen: rank 2 is blamed."""
    world = FakeWorld(3)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[1].enter(group_of(1, 2), 2.0)
    world.ranks[2].stopped = "T"
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.FROZEN, (2,))


def test_frozen_process_is_reported_as_frozen() -> None:
    """A rank whose heartbeat has stopped does not answer: the sentence states how long its threads have not run."""
    world = late_world(2)
    world.ranks[2].heartbeat_age_s = 12.0
    assert the_sentence_of(world).endswith(
        "it was last in all_reduce, called in train at train.py:42, and its Python threads have not run for 12.0 s. "
        "3 of 4 ranks wait in train at train.py:42"
    )


def the_sentence_of(world: FakeWorld) -> str:
    """The sentence 11 seconds after the stall began."""
    snapshot = world.snapshot(21.0)
    return spoken(snapshot, the_verdict(snapshot))
