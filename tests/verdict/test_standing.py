"""Verdicts stand: a job that hangs and is then ended keeps its verdict, however its ranks end."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.stall.reporting.attributes import resolution
from otel_torchdist.verdict.model import Outcome
from tests.support.worlds.detectors import Watching, stalled
from tests.support.worlds.fake_world import FakeRank, FakeWorld

KILL, TERM = int(signal.SIGKILL), int(signal.SIGTERM)
DYING = Callable[[FakeRank, float], None]


def _unseen(rank: FakeRank, at_s: float) -> None:
    rank.die(at_s)


def _by_signal(rank: FakeRank, at_s: float) -> None:
    rank.is_seen_to_die(at_s, TERM)


def hung() -> tuple[FakeWorld, dict[int, int], Watching]:
    """Rank 2 is late for 12 s, and that was reported."""
    world, numbers = stalled()
    watching = Watching(world).until(17.0)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (2,))
    return world, numbers, watching


def check_that_it_stands(watching: Watching) -> None:
    """No other rank is named, and the report is that the job was ended while it hung."""
    watching.until(60.0)
    assert {given.verdict.ranks for _, given in watching.verdicts} == {(2,)}
    assert {given.verdict.kind for _, given in watching.verdicts} == {VerdictKind.ABSENT}
    ((_, end),) = watching.ends
    assert end.outcome is Outcome.RANKS_ENDED
    said = resolution(end.verdict, end.outcome, end.length_ns)
    assert said.startswith("the job was ended while it hung, after ")


@pytest.mark.parametrize("dying", [_unseen, _by_signal])
@pytest.mark.parametrize("survivor", [True, False], ids=["the named rank lives", "all die"])
def test_waiting_ranks_are_ended(dying: DYING, survivor: bool) -> None:
    """A stopped rank outlives SIGTERM; others do not, and all may be gone at the same poll."""
    world, _, watching = hung()
    for rank in world.ranks:
        if rank.rank != 2 or not survivor:
            dying(rank, 17.1 + rank.rank / 1000)
    check_that_it_stands(watching)


def test_waiting_ranks_die_one_after_the_other() -> None:
    """The first is gone some polls before the others, one of which leaves the operation with an exception from that."""
    world, numbers, watching = hung()
    world.ranks[0].is_seen_to_die(17.1, TERM)
    watching.until(18.0)
    world.ranks[1].end(numbers[1], 18.1, How.FAILED, "RuntimeError")
    watching.until(18.5)
    world.ranks[1].is_seen_to_die(18.6, 1 << 8, TapeState.FAILED, "RuntimeError")
    watching.until(19.0)
    world.ranks[3].is_seen_to_die(19.1, TERM)
    world.ranks[2].is_seen_to_die(47.0, KILL)
    check_that_it_stands(watching)


def test_named_rank_is_killed() -> None:
    """That is news about the same rank: the others continue to wait, for a dead one."""
    world, _, watching = hung()
    world.ranks[2].is_seen_to_die(17.1, KILL)
    watching.until(24.0)
    kinds = [(given.verdict.kind, given.verdict.ranks) for _, given in watching.verdicts]
    assert kinds == [(VerdictKind.ABSENT, (2,)), (VerdictKind.DEAD, (2,))]


def test_ended_while_stacks_are_awaited() -> None:
    """The verdict was about to be given when a waiting rank died: it is given unchanged."""
    world, _ = stalled()
    watching = Watching(world, answers_after_s=None).until(15.5)
    assert watching.verdicts == []
    world.ranks[0].is_seen_to_die(15.6, TERM)
    watching.until(17.0)
    for rank in (1, 3):
        world.ranks[rank].is_seen_to_die(17.1, TERM)
    check_that_it_stands(watching)
