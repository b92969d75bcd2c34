"""Which rank died first, from what was seen of each rank's end: by the kernel's order, else by other signs.

What launchers, signals, backends and loaded machines do to ranks is in `deaths/test_all_small_worlds.py`; here is what
that model leaves out.
"""

from __future__ import annotations

import dataclasses
import signal

import pytest

from otel_torchdist.judge.stall.watch import CHECK_S
from otel_torchdist.judge.verdict.first_death import FirstDeath, first_death
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, Watching, stalled
from tests.support.worlds.fake_world import SECOND, START_NS, THRESHOLD_NS, FakeWorld

KILL, TERM, INTERRUPT, ABORT = map(int, (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGABRT))
RAISED = 1 << 8
"""The wait status of a process that exited with code 1."""
CODE_3 = 3 << 8


def busy(at_s: float = 5.0) -> tuple[FakeWorld, dict[int, int]]:
    """Four ranks in the middle of an all_reduce."""
    return stalled(late=-1, since_s=at_s)


def first_of(world: FakeWorld, now_s: float = 7.0) -> FirstDeath:
    """The first death among all ranks."""
    found = first_death([rank.view(now_s) for rank in world.ranks])
    assert found is not None
    return found


def end_others(world: FakeWorld, at_s: float, status: int = TERM, but: int = 2) -> None:
    """A launcher ends the others, a millisecond after each other."""
    for rank in world.ranks:
        if rank.rank != but:
            rank.is_seen_to_die(at_s + rank.rank / 1000, status)


def test_killed_before_the_launcher_ended_the_others() -> None:
    """All were gone at the same poll: the kernel's order names the first, and how long before the next it died."""
    world, _ = busy()
    world.ranks[2].is_seen_to_die(6.0, KILL)
    end_others(world, 6.1)
    first = first_of(world)
    assert (first.ranks, first.together, first.is_inferred, first.may_follow) == ((2,), False, False, False)
    assert first.lead_ns == 100_000_000
    assert first.deaths[2].signal_name == "SIGKILL"


def test_killed_before_anything_watched_it() -> None:
    """A rank that was gone at the first poll may have been asked to end, as the others were: none is named."""
    world, _ = busy()
    world.ranks[2].die(6.4)  # found gone, with no record of its end
    for rank in (0, 1, 3):
        world.ranks[rank].is_seen_to_die(6.2 + rank / 100, TERM)
    views = [rank.view(7.0) for rank in world.ranks]
    views[2] = dataclasses.replace(views[2], seen_alive_ns=0, heartbeat_ns=START_NS + 6 * SECOND)
    first = first_death(views)
    assert first is not None
    assert first.together and 2 in first.ranks


@pytest.mark.parametrize(("status", "is_named"), [(TERM, False), (RAISED, True), (KILL, False)])
def test_one_rank_got_sigterm(status: int, is_named: bool) -> None:
    """It is named if all others then came to their own ends, and not if one may have been asked to end, too."""
    world, numbers = busy()
    world.ranks[2].is_seen_to_die(6.0, TERM)
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 6.0, How.FAILED, "RuntimeError")
    world.ranks[0].is_seen_to_die(6.06, RAISED, TapeState.FAILED, "RuntimeError")
    for rank in (1, 3):
        world.ranks[rank].is_seen_to_die(6.08, status)
    first = first_of(world)
    assert (first.ranks, first.together) == ((2,), not is_named)


@pytest.mark.parametrize("handles", [False, True])
@pytest.mark.parametrize("others", [TERM, RAISED, CODE_3])
def test_exited_on_a_loaded_machine(others: int, handles: bool) -> None:
    """The ends are seen late, within a millisecond: one exited by itself, which interrupted the others.

    Where all have the same code, and a handler of the signal that cancels a job, that may have done it: none is named.
    """
    world, numbers = busy()
    world.ranks[2].is_seen_to_die(6.0, CODE_3)
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 5.99, How.FAILED, "RuntimeError")
        world.ranks[rank].is_seen_to_die(6.0 + rank / 10_000, others, TapeState.FAILED, "RuntimeError")
    for rank in world.ranks:
        assert rank.death is not None
        rank.death = dataclasses.replace(rank.death, outlives_request=handles)
    world.ranks[2].heartbeat_age_s = 1.2
    first = first_of(world)
    is_named = others == RAISED or not handles
    assert (first.ranks if is_named else 2 in first.ranks, first.together) == ((2,) if is_named else True, not is_named)


def test_interrupted_from_a_terminal() -> None:
    """Ctrl-C goes to all: how and when each of them ends blames none."""
    world, numbers = busy()
    world.ranks[1].is_seen_to_die(6.0, INTERRUPT, TapeState.FAILED, "KeyboardInterrupt")
    world.ranks[0].end(numbers[0], 6.05, How.FAILED, "RuntimeError")
    world.ranks[0].is_seen_to_die(6.4, RAISED, TapeState.FAILED, "RuntimeError")
    world.ranks[2].is_seen_to_die(6.5, TERM)
    world.ranks[3].is_seen_to_die(6.5, TERM)
    assert first_of(world).together


def test_connection_lost_by_one() -> None:
    """A rank gets an exception of its own, and the launcher ends the others: it is named, and the order is inferred."""
    world, numbers = busy()
    world.ranks[1].end(numbers[1], 6.0, How.FAILED, "RuntimeError")
    world.ranks[1].is_seen_to_die(6.2, RAISED, TapeState.FAILED, "RuntimeError")
    end_others(world, 6.3, but=1)
    first = first_of(world)
    assert (first.ranks, first.is_inferred) == ((1,), True)


def test_all_make_the_same_error() -> None:
    """A wrong argument raises on every rank: none of them caused it."""
    world = FakeWorld(4)
    for rank in world.ranks:
        rank.is_seen_to_die(6.0 + rank.rank / 5, RAISED, TapeState.FAILED, "ValueError")
    assert first_of(world).together


def test_verdict_on_a_job_that_was_gone_at_the_next_check() -> None:
    """The agent names the one that died first, and how; after that it reports only that all have ended."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    world.ranks[2].is_seen_to_die(6.02, KILL, oom="cgroup")
    end_others(world, 6.14)
    watching.until(6.5)
    assert watching.verdicts == []  # something else may have ended all of them
    watching.until(30.0)
    ((at_s, given),) = watching.verdicts
    assert at_s <= 6.52 + 2 * CHECK_S
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert len(watching.ends) == 1


def test_verdict_on_a_rank_killed_while_no_rank_communicates() -> None:
    """All compute when one is killed and the launcher ends the others: named with the last operation they shared."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    watching = Watching(world).until(6.0)
    world.ranks[1].is_seen_to_die(6.02, KILL)
    end_others(world, 6.08, but=1)
    watching.until(30.0)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (1,))


def test_no_verdict_on_a_cancelled_job() -> None:
    """If all are ended by SIGTERM in the middle of a collective, nothing is reported."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    for rank in world.ranks:
        rank.is_seen_to_die(6.1 + rank.rank / 1000, TERM)
    watching.until(30.0)
    assert watching.reported == []


def test_no_verdict_while_a_cancelled_job_takes_long_to_end() -> None:
    """All are killed at once; one is gone at once, the others free their memory for longer than a verdict waits."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    world.ranks[0].is_seen_to_die(6.1, TERM, with_others=True)
    watching.until(9.0)
    world.ranks[1].die(9.0)  # seen to be gone, but not yet how it ended
    watching.until(9.1)
    for rank in (1, 2, 3):
        world.ranks[rank].is_seen_to_die(9.0 + rank / 10, TERM)
    watching.until(30.0)
    assert watching.reported == []


def test_rank_that_left_by_os_exit() -> None:
    """Exit code 0 outside an operation is a clean end, although the tape does not record it."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    world.ranks[2].is_seen_to_die(6.0, 0)
    assert not world.ranks[2].view(7.0).is_dead
    world.ranks[3].enter(EVERYBODY, 5.0)
    world.ranks[3].is_seen_to_die(6.0, 0)
    assert world.ranks[3].view(7.0).is_dead


def test_rank_that_is_ended_because_of_another_node() -> None:
    """One node sees two of four ranks: the cause of their exception, and of the launcher's signal, is elsewhere."""
    world, numbers = busy(5.9)
    world.ranks[0].end(numbers[0], 6.1, How.FAILED, "RuntimeError")
    world.ranks[1].is_seen_to_die(6.2, TERM)
    world.ranks[0].is_seen_to_die(6.3, RAISED, TapeState.FAILED, "RuntimeError")
    snapshot = world.snapshot(7.0, only=(0, 1))
    views = {
        rank: dataclasses.replace(view, gone_since_ns=snapshot.taken_ns - SECOND)
        for rank, view in snapshot.ranks.items()
    }
    seen = dataclasses.replace(snapshot, ranks=views)
    assert RootFinder(THRESHOLD_NS).find(seen, [], None) is None
    world.ranks[2].is_seen_to_die(6.05, KILL)
    world.ranks[3].is_seen_to_die(6.2, TERM)
    everybody = world.snapshot(7.0)
    found = first_death(tuple(everybody.ranks.values()))
    assert found is not None and found.ranks == (2,)


def vanish(watch: Watching, at_s: float, ranks: tuple[int, ...]) -> None:
    """At a poll these ranks are gone, and nothing else is known about them."""
    for rank in ranks:
        watch.world.ranks[rank].die(at_s)
    watch.now_s = at_s
    watch.poll()


@pytest.mark.parametrize("entered", [(0, 2), (0, 1, 2, 3)], ids=["two had come", "all had come"])
def test_gone_from_one_check_to_the_next(entered: tuple[int, ...]) -> None:
    """A launcher ends all, and a poll falls between the first and the others: the first was not the cause."""
    world, _ = stalled(late=-1, since_s=1.0)
    for rank in range(4):
        world.ranks[rank].end(next(iter(world.ranks[rank].open)), 2.0)
    for rank in entered:
        world.ranks[rank].enter(EVERYBODY, 5.0)
    watch = Watching(world).until(6.0)
    vanish(watch, 6.25, (3,))
    vanish(watch, 6.5, (0, 1, 2))
    watch.until(20.0)
    assert watch.verdicts == []


def test_the_only_one_that_is_behind_is_not_named() -> None:
    """The same, and the first to be gone had entered less than all others: whatever ended all may have met it first."""
    world, _ = stalled(late=3, since_s=5.0)
    watch = Watching(world).until(6.0)
    vanish(watch, 6.25, (3,))
    vanish(watch, 6.5, (0, 1, 2))
    watch.until(20.0)
    assert watch.verdicts == []


def test_cancelled_between_two_checks() -> None:
    """At one poll a waiting rank has been terminated, at the next one all have: none was first."""
    world, _ = stalled(late=-1, since_s=1.0)
    for rank in range(4):
        world.ranks[rank].end(next(iter(world.ranks[rank].open)), 2.0)
    world.ranks[0].enter(EVERYBODY, 5.9)
    watch = Watching(world).until(6.0)
    world.ranks[0].is_seen_to_die(6.0, TERM)
    watch.poll()
    for rank in (1, 2, 3):
        world.ranks[rank].is_seen_to_die(6.0 + rank / 100, TERM)
    watch.until(20.0)
    assert watch.verdicts == []
