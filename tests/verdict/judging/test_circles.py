"""Ranks that wait for each other: which are listed, and when there may be no circle."""

from otel_torchdist.tape.layout import Flag
from otel_torchdist.verdict.model import Doubt, VerdictKind
from otel_torchdist.verdict.wording.sentence import sentence
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.sentences import the_verdict


def test_circle_names_all_ranks_and_where_each_waits() -> None:
    """Ranks 0, 1 and 2 wait for each other in pairs: all are listed with their groups, whichever wait is judged."""
    world = FakeWorld(3)
    pairs = [group_of(0, 1, description="a"), group_of(1, 2, description="b"), group_of(0, 2, description="c")]
    for rank, pair in enumerate(pairs):
        world.ranks[rank].enter(pair, 1.0 + (rank + 1) % 3)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1, 2))
    assert [(link.rank, link.group.label) for link in verdict.circle if link.group] == [(0, "a"), (1, "b"), (2, "c")]
    assert sentence(verdict, 19).startswith(
        "ranks 0-2 have waited for each other for 19.0 s: "
        "rank 0 waits for rank 1 in all_reduce (sequence 1, a) at train, train.py:42; "
        "rank 1 waits for rank 2 in all_reduce (sequence 1, b) at train, train.py:42; "
        "rank 2 waits for rank 0 in all_reduce (sequence 1, c) at train, train.py:42"
    )


def test_two_groups_in_opposite_order() -> None:
    """Two ranks begin with different groups of the same members: a circle of two."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1, description="a"), 1.0)
    world.ranks[1].enter(group_of(0, 1, nth=1, description="b"), 2.0)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1))
    assert len(verdict.circle) == 2


def test_circle_that_may_be_none() -> None:
    """Two of its ranks are not seen to block, so they may be busy: all are listed, none is blamed."""
    world = FakeWorld(3)
    for rank, pair in enumerate([group_of(0, 1), group_of(1, 2), group_of(0, 2)]):
        world.ranks[rank].enter(pair, 1.0, blocking=rank == 0, flags=Flag.ASYNC)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.CYCLE, (0, 1, 2))
    assert sentence(verdict, 19).startswith("ranks 0-2 have waited for each other, in all_reduce (sequence 1")


def test_circle_through_a_rank_that_may_be_busy() -> None:
    """Rank 1 has an operation in flight but is not seen to block: it is absent where rank 0 waits for it."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1, nth=0), 1.0)
    world.ranks[1].enter(group_of(0, 1, nth=1), 2.0, blocking=False, flags=Flag.ASYNC)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))
