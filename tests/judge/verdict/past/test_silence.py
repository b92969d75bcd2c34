"""Runs whose ends nothing observed, with one rank that fell silent earlier: what that proves, and what it does not."""

from __future__ import annotations

from otel_torchdist.judge.verdict.past.last_moment import last_moment
from otel_torchdist.judge.verdict.past.post_mortem import judge
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, THRESHOLD_NS, FakeWorld

NOW_S = 30.0
LATER_NS = START_NS + 1_000_000 * SECOND


def verdict_of(world: FakeWorld, silent_s: dict[int, float]) -> Verdict | None:
    """Return the verdict after all ranks are gone. `silent_s` is each rank's silence before the last sign of life."""
    for rank in world.ranks:
        rank.alive = False
        rank.heartbeat_age_s = silent_s.get(rank.rank, 0.5)
    views = [rank.view(NOW_S) for rank in world.ranks]
    return judge(last_moment(RUN, views, LATER_NS), StallRules(THRESHOLD_NS))


def enter(world: FakeWorld, group: GroupView, at_s: float, *ranks: int) -> None:
    """Let ranks enter the next operation."""
    for rank in ranks:
        world.ranks[rank].enter(group, at_s)


def test_the_silent_rank_is_awaited(world: FakeWorld, group: GroupView) -> None:
    """The others wait for the silent rank: it is named, with all possible reasons for its silence."""
    enter(world, group, 10.0, 0, 1, 3)
    verdict = verdict_of(world, {2: 20.5})
    assert verdict is not None
    assert describe_verdict(verdict, verdict.age_ns(START_NS + round(29.5 * SECOND)) / 1e9) == (
        "rank 2 fell silent, and all_reduce (sequence 2, default_pg) has been blocked for 19.5 s; "
        "it was last in all_reduce, called in train at train.py:42; 3 of 4 ranks wait in train at train.py:42. "
        "Its process died or was stopped, or native code did not release its GIL: nothing recorded which"
    )


def test_two_fell_silent_within_a_second(world: FakeWorld, group: GroupView) -> None:
    """Two silent ranks are awaited, and heartbeats do not show which was first: both are named."""
    enter(world, group, 10.0, 0, 1)
    verdict = verdict_of(world, {2: 20.5, 3: 21.0})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2, 3))
    assert describe_verdict(verdict, 1.0).startswith("ranks 2-3 fell silent, and all_reduce")
    assert "Their processes died or were stopped, or native code did not release their GILs" in describe_verdict(
        verdict, 1.0
    )


def test_another_rank_is_missing(world: FakeWorld, group: GroupView) -> None:
    """A silent rank that has entered is not named if a live rank is missing: the missing rank is."""
    enter(world, group, 10.0, 0, 1, 3)
    verdict = verdict_of(world, {1: 6.0})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))


def test_another_rank_is_late_for_a_moment(world: FakeWorld, group: GroupView) -> None:
    """The same below the threshold: nothing had stalled, so no rank is named."""
    enter(world, group, NOW_S - 5.0, 0, 1, 3)
    assert verdict_of(world, {1: 4.0}) is None


def test_all_have_come_a_moment_ago(world: FakeWorld, group: GroupView) -> None:
    """Ranks killed in an operation that all have just entered give no verdict, whatever the heartbeats."""
    enter(world, group, NOW_S - 5.0, 0, 1, 2, 3)
    assert verdict_of(world, {1: 4.0}) is None


def test_all_have_come_long_ago(world: FakeWorld, group: GroupView) -> None:
    """If an operation that all have entered does not end, a rank that has not run since is named."""
    enter(world, group, 10.0, 0, 1, 2, 3)
    verdict = verdict_of(world, {2: 18.0})
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert "rank 2 fell silent" in describe_verdict(verdict, 1.0)


def test_all_together(world: FakeWorld, group: GroupView) -> None:
    """If a scheduler ends all ranks together, heartbeats a second apart prove nothing."""
    enter(world, group, NOW_S - 1.0, 0, 1, 3)
    assert verdict_of(world, {0: 0.1, 1: 1.0, 2: 1.1, 3: 0.6}) is None


def test_silent_outside_of_anything(world: FakeWorld) -> None:
    """No rank waits for the one that fell silent: there is no verdict."""
    assert verdict_of(world, {2: 20.0}) is None


def test_silence_of_what_has_another_reason(world: FakeWorld, group: GroupView) -> None:
    """A rank counts as silent only if nothing else shows its end: a record, an observed death, or a live rank."""
    enter(world, group, 10.0, 0)
    for rank in world.ranks:
        rank.alive, rank.heartbeat_age_s = False, 20.5 if rank.rank else 0.5
    world.ranks[1].is_seen_to_die(9.0, 9)
    world.ranks[2].die(9.0, TapeState.FINISHED)
    views = [rank.view(NOW_S) for rank in world.ranks]
    then = last_moment(RUN, views, LATER_NS).world
    assert [rank for rank, view in then.ranks.items() if view.fell_silent] == [3]
    world.ranks[0].alive = True
    now = last_moment(RUN, [rank.view(NOW_S) for rank in world.ranks], LATER_NS).world
    assert not any(view.fell_silent for view in now.ranks.values())
