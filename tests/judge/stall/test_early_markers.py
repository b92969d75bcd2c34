"""Markers of operations that wait for the cause of a verdict given before the threshold."""

from __future__ import annotations

from otel_torchdist.judge.stall.events import MarkerDue
from otel_torchdist.judge.stall.incidents.ages import MarkerClock
from otel_torchdist.judge.stall.run_watch import RunWatch
from otel_torchdist.judge.verdict.rules import StallRules, waits_of
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, Watching, stalled
from tests.support.worlds.fake_world import START_NS, THRESHOLD_NS, FakeWorld, group_of


def marked(watching: Watching) -> list[tuple[float, int, int]]:
    """Return each marker's time, rank and number."""
    found = [(at_s, event) for at_s, event in watching.events if isinstance(event, MarkerDue)]
    return [(at_s, event.wait.view.rank, event.nth) for at_s, event in found]


def test_death_brings_the_markers_of_waiting_ranks() -> None:
    """Rank 2 dies after two seconds of waiting: markers come with the verdict, and the next ones at the usual times."""
    world, _ = stalled(since_s=5.0)
    watching = Watching(world).until(7.0)
    world.ranks[2].die(7.0)
    watching.until(9.0)
    [(given_s, given)] = watching.verdicts
    assert given.verdict.kind is VerdictKind.DEAD
    assert marked(watching) == [(given_s, 0, 1), (given_s, 1, 1), (given_s, 3, 1)]
    watching.until(30.0)
    assert [(rank, nth) for at_s, rank, nth in marked(watching) if at_s > given_s] == [
        (0, 2), (1, 2), (3, 2), (0, 3), (1, 3), (3, 3),
    ]  # fmt: skip


def test_waits_behind_a_death_are_marked_too() -> None:
    """Rank 1 waits for rank 0, which waits for the dead one; ranks 3 and 4 wait for unrelated reasons."""
    world = FakeWorld(5)
    world.ranks[0].enter(group_of(0, 2), 5.0)
    world.ranks[1].enter(group_of(0, 1), 5.5)
    world.ranks[3].enter(group_of(3, 4), 5.5)
    watching = Watching(world).until(7.0)
    world.ranks[2].die(7.0)
    watching.until(9.0)
    assert [rank for _, rank, _ in marked(watching)] == [0, 1]


def test_operation_that_is_entered_after_the_verdict() -> None:
    """A rank that starts to wait for the dead rank later gets one marker immediately."""
    world = FakeWorld(4)
    world.ranks[0].enter(EVERYBODY, 5.0)
    watching = Watching(world).until(6.0)
    world.ranks[2].die(6.0)
    watching.until(8.0)
    world.ranks[1].enter(EVERYBODY, 8.0)
    watching.until(9.0)
    assert [(rank, nth) for _, rank, nth in marked(watching)] == [(0, 1), (1, 1)]


def test_mismatch_that_ends_a_rank() -> None:
    """A backend ended the rank with the mismatched call: reported immediately, with markers of the waiting ranks."""
    world = FakeWorld(4)
    for rank in world.ranks:
        rank.enter(EVERYBODY, 5.0, shape=(1024,) if rank.rank == 2 else (16,))
    watching = Watching(world).until(6.0)
    world.ranks[2].end(1, 6.0, How.FAILED, "RuntimeError")
    world.ranks[2].die(6.1, TapeState.FAILED, "RuntimeError")
    watching.until(8.0)
    [(given_s, given)] = watching.verdicts
    assert given.verdict.kind is VerdictKind.MISMATCHED
    assert [(at_s, rank) for at_s, rank, _ in marked(watching)] == [(given_s, 0), (given_s, 1), (given_s, 3)]


def test_what_is_left_alone_gets_none() -> None:
    """Operations that the user excludes get no markers."""
    world, _ = stalled(since_s=5.0)
    watching = Watching(world, ignored=["all_reduce"]).until(7.0)
    world.ranks[2].die(7.0)
    watching.until(9.0)
    assert marked(watching) == []


def test_agent_that_follows_marks_at_once_too() -> None:
    """If another agent has given the verdict, this node's operations at the same position get markers."""
    world, _ = stalled(since_s=5.0)
    watching = Watching(world).until(7.0)
    world.ranks[2].die(7.0)
    watching.until(8.0)
    [ongoing] = watching.detector.ongoing
    follower = RunWatch(StallRules(THRESHOLD_NS), START_NS)
    events = follower.follow(world.snapshot(8.0, only=(0, 1)), ongoing.ruling)
    assert [event.wait.view.rank for event in events if isinstance(event, MarkerDue)] == [0, 1]
    assert follower.follow(world.snapshot(8.5, only=(0, 1)), ongoing.ruling) == []


def test_clock_counts_on_after_an_early_marker() -> None:
    """The next marker is due at the threshold, however early the first one came."""
    world, _ = stalled(since_s=5.0)

    clock = MarkerClock(THRESHOLD_NS, START_NS)
    waits = waits_of(world.snapshot(6.0))
    ages = [
        second
        for second in range(6, 30)
        if clock.due(waits if second >= 15 else (), START_NS + second * 10**9, at_once=waits)
    ]
    assert ages == [6, 15, 25]
