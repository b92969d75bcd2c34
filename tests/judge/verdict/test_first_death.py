"""The first death, from the evidence on each rank's end: the kernel's order, or other signs.

The effects of launchers, signals, backends and loaded machines are tested in `deaths/test_all_small_worlds.py`. These
tests cover what that model leaves out.
"""

from __future__ import annotations

import dataclasses
import signal

import pytest

from otel_torchdist.judge.stall.watch import CHECK_S
from otel_torchdist.judge.verdict.first_death import FirstDeath, first_death
from otel_torchdist.judge.verdict.root_cause import RootFinder
from otel_torchdist.judge.verdict.wording.ends import describe_together
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, Watching, stalled
from tests.support.worlds.fake_world import SECOND, START_NS, THRESHOLD_NS, FakeWorld

KILL, TERM, INTERRUPT, ABORT = map(int, (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGABRT))
RAISED = 1 << 8
"""The wait status of a process that exited with code 1."""
CODE_3 = 3 << 8


def busy(at_s: float = 5.0) -> tuple[FakeWorld, dict[int, int]]:
    """Build four ranks in the middle of an all_reduce."""
    return stalled(late=-1, since_s=at_s)


def first_of(world: FakeWorld, now_s: float = 7.0) -> FirstDeath:
    """Return the first death among all ranks."""
    found = first_death([rank.view(now_s) for rank in world.ranks])
    assert found is not None
    return found


def end_others(world: FakeWorld, at_s: float, status: int = TERM, but: int = 2) -> None:
    """Let a launcher end the others, a millisecond apart."""
    for rank in world.ranks:
        if rank.rank != but:
            rank.is_seen_to_die(at_s + rank.rank / 1000, status)


def test_killed_before_the_launcher_ended_the_others() -> None:
    """All ranks were gone at one poll: the kernel's order shows the first, and its lead."""
    world, _ = busy()
    world.ranks[2].is_seen_to_die(6.0, KILL)
    end_others(world, 6.1)
    first = first_of(world)
    assert (first.ranks, first.together, first.is_inferred, first.may_follow) == ((2,), False, False, False)
    assert first.lead_ns == 100_000_000
    assert first.deaths[2].signal_name == "SIGKILL"


def test_killed_before_anything_watched_it() -> None:
    """A rank gone at the first poll may have been asked to end like the others: none is named."""
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
    """A rank that got SIGTERM is named only if all others then ended by themselves, without a request."""
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
    """Ends are seen late, within a millisecond: one rank exited by itself, which interrupted the others.

    If all have the same exit code and handle SIGTERM, a canceled job may be the reason: none is named.
    """
    world, numbers = busy()
    world.ranks[2].is_seen_to_die(6.0, CODE_3)
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 5.99, How.FAILED, "RuntimeError")
        world.ranks[rank].is_seen_to_die(6.0 + rank / 10_000, others, TapeState.FAILED, "RuntimeError")
    for rank in world.ranks:
        assert rank.death is not None
        rank.death = dataclasses.replace(rank.death, survives_sigterm=handles)
    world.ranks[2].heartbeat_age_s = 1.2
    first = first_of(world)
    is_named = others == RAISED or not handles
    assert (first.ranks if is_named else 2 in first.ranks, first.together) == ((2,) if is_named else True, not is_named)


def test_interrupted_from_a_terminal() -> None:
    """Ctrl-C goes to all ranks: no rank is named, whatever the kinds and times of their ends."""
    world, numbers = busy()
    world.ranks[1].is_seen_to_die(6.0, INTERRUPT, TapeState.FAILED, "KeyboardInterrupt")
    world.ranks[0].end(numbers[0], 6.05, How.FAILED, "RuntimeError")
    world.ranks[0].is_seen_to_die(6.4, RAISED, TapeState.FAILED, "RuntimeError")
    world.ranks[2].is_seen_to_die(6.5, TERM)
    world.ranks[3].is_seen_to_die(6.5, TERM)
    assert first_of(world).together


def test_connection_lost_by_one() -> None:
    """A rank loses its connection and raises, and the launcher ends the others: it is named, the order inferred."""
    world, numbers = busy()
    world.ranks[1].end(numbers[1], 6.0, How.FAILED, "RuntimeError")
    world.ranks[1].is_seen_to_die(6.2, RAISED, TapeState.FAILED, "RuntimeError")
    end_others(world, 6.3, but=1)
    first = first_of(world)
    assert (first.ranks, first.is_inferred) == ((1,), True)


def test_all_make_the_same_error() -> None:
    """An exception on every rank, such as a wrong argument, has no first rank."""
    world = FakeWorld(4)
    for rank in world.ranks:
        rank.is_seen_to_die(6.0 + rank.rank / 5, RAISED, TapeState.FAILED, "ValueError")
    assert first_of(world).together


def test_verdict_on_a_job_that_was_gone_at_the_next_check() -> None:
    """The agent reports the first death, and after that only that all ranks have ended."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    world.ranks[2].is_seen_to_die(6.02, KILL, oom="cgroup")
    end_others(world, 6.14)
    watching.until(6.5)
    assert watching.verdicts == []  # one cause may have ended all of them
    watching.until(30.0)
    ((at_s, given),) = watching.verdicts
    assert at_s <= 6.52 + 2 * CHECK_S
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert len(watching.ends) == 1


def test_verdict_on_a_rank_killed_while_no_rank_communicates() -> None:
    """A rank is killed while all compute, and the launcher ends the others: named with their last common operation."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    watching = Watching(world).until(6.0)
    world.ranks[1].is_seen_to_die(6.02, KILL)
    end_others(world, 6.08, but=1)
    watching.until(30.0)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (1,))


def test_no_verdict_on_a_canceled_job() -> None:
    """If SIGTERM ends all ranks in a collective, nothing is reported."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    for rank in world.ranks:
        rank.is_seen_to_die(6.1 + rank.rank / 1000, TERM)
    watching.until(30.0)
    assert watching.reported == []


def test_no_verdict_while_a_canceled_job_takes_long_to_end() -> None:
    """All ranks are killed together, but the others take longer to free memory than a verdict waits: none is named."""
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
    """One node sees two of four ranks: the cause of their ends is on another node."""
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
    """Let these ranks be gone at a poll, without further evidence."""
    for rank in ranks:
        watch.world.ranks[rank].die(at_s)
    watch.now_s = at_s
    watch.poll()


@pytest.mark.parametrize("entered", [(0, 2), (0, 1, 2, 3)], ids=["two had come", "all had come"])
def test_gone_from_one_check_to_the_next(entered: tuple[int, ...]) -> None:
    """A launcher ends all ranks, with a poll in between: the first to be gone is not the cause."""
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
    """The same if the first to be gone was behind: the common cause may have ended it first."""
    world, _ = stalled(late=3, since_s=5.0)
    watch = Watching(world).until(6.0)
    vanish(watch, 6.25, (3,))
    vanish(watch, 6.5, (0, 1, 2))
    watch.until(20.0)
    assert watch.verdicts == []


def test_canceled_between_two_checks() -> None:
    """At one poll a waiting rank has been terminated, at the next all have: none was first."""
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


def under_ray(killed_at_s: float, others_status: int) -> FirstDeath:
    """The first death where Ray Train runs the ranks, and SIGKILL ends rank 2 while the others wait for it."""
    world, numbers = busy()
    world.ranks[2].is_seen_to_die(killed_at_s, KILL)
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 6.0, How.FAILED, "RuntimeError")
        world.ranks[rank].is_seen_to_die(6.5 + rank / 1000, others_status, TapeState.FINISHED)
    for rank in world.ranks:
        assert rank.death is not None
        rank.death = dataclasses.replace(rank.death, launcher="raylet", survives_sigterm=True)
    return first_of(world)


def test_killed_worker_of_ray() -> None:
    """A worker that only SIGKILL ended is named if it was the first, and Ray ended the others with its exit code."""
    first = under_ray(6.001, RAISED)
    assert (first.ranks, first.together, first.is_open) == ((2,), False, False)


@pytest.mark.parametrize(("killed_at_s", "others_status"), [(6.001, KILL), (6.6, RAISED)])
def test_workers_that_ray_ends(killed_at_s: float, others_status: int) -> None:
    """A worker killed like the others, or after one of them, is not named: Ray may have ended it."""
    first = under_ray(killed_at_s, others_status)
    assert first.together


def test_the_only_death_under_ray() -> None:
    """A sentence on a single death does not speak of several."""
    world, _ = busy()
    world.ranks[2].is_seen_to_die(6.0, KILL)
    for rank in world.ranks:
        death = rank.death or Death(START_NS + 6 * SECOND + 1, status=RAISED)
        rank.death = dataclasses.replace(death, launcher="raylet", survives_sigterm=True)
    first = first_of(world)
    assert first.is_alone
    expected = "rank 2 was killed by SIGKILL, as launchers end ranks: nothing shows that it caused the end of the job"
    assert describe_together(first) == expected
