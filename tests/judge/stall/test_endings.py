"""Ranks that die or finish: what is reported immediately, and what is no stall."""

import dataclasses
import signal

import pytest

from otel_torchdist.judge.stall.events import IncidentResolved, StacksWanted
from otel_torchdist.judge.stall.watch import CHECK_S
from otel_torchdist.judge.verdict.verdict import Outcome
from otel_torchdist.model.kinds import Flag, How, TapeState
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, Watching, stalled
from tests.support.worlds.fake_world import RUN, FakeWorld, group_of


def test_death_is_reported_at_once() -> None:
    """A rank dies while others wait for it: reported at the second poll, without the threshold and without stacks."""
    world, _ = stalled()
    watching = Watching(world).until(6.0)
    world.ranks[2].die(6.1)
    watching.until(6.1 + 2 * CHECK_S)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert not any(isinstance(event, StacksWanted) for _, event in watching.events)


@pytest.mark.parametrize("others_s", [6.2, 6.3, 6.45])
@pytest.mark.parametrize("is_seen", [True, False])
def test_agents_stay_for_the_last_verdict(others_s: float, is_seen: bool) -> None:
    """When no tape is in use any more, agents stay until the ends are known and the first death is reported."""
    world, _ = stalled()
    watching = Watching(world).until(6.0)
    assert watching.detector.awaits_last_verdict
    for at_s, ranks, number in ((6.1, (2,), signal.SIGKILL), (others_s, (0, 1, 3), signal.SIGTERM)):
        for rank in ranks:
            if is_seen:
                world.ranks[rank].is_seen_to_die(at_s, number)
            else:
                world.ranks[rank].die(at_s)
    watching.now_s = others_s
    watching.poll()
    while watching.detector.awaits_last_verdict and watching.now_s < 8.0:
        watching.until(watching.now_s + 0.1)
    assert watching.now_s <= others_s + 1.0
    # Without their exit statuses, one cause may have ended all of them.
    assert [(given.verdict.kind, given.verdict.ranks) for _, given in watching.verdicts] == (
        [(VerdictKind.DEAD, (2,))] if is_seen else []
    )


def test_death_waits_for_what_the_rank_had_still_written() -> None:
    """At the first poll after a death, the dead rank's last records may be missing: the second poll reports it."""
    world, numbers = stalled()
    watching = Watching(world).until(6.0)
    world.ranks[2].die(6.25)
    watching.until(6.25)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 6.3)
    watching.until(8.0)
    assert watching.reported == []


def test_death_is_reported_though_the_others_failed_at_once() -> None:
    """With gloo, peers of a dead rank raise and end within milliseconds: one poll must be enough."""
    world, numbers = stalled()
    watching = Watching(world).until(6.0)
    world.ranks[2].die(6.25)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 6.1, How.FAILED, "RuntimeError")
    watching.until(6.25)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))
    for rank in numbers:
        world.ranks[rank].die(6.4, TapeState.FAILED, "RuntimeError")
    watching.until(20.0)
    assert len(watching.verdicts) == 1
    assert [end.outcome for _, end in watching.ends] == [Outcome.FAILED]


def test_death_is_reported_though_the_rank_was_seen_after_the_exception() -> None:
    """The kernel closes a dead process's sockets before it releases the tape's lock. A poll may come in between."""
    world, numbers = stalled()
    watching = Watching(world).until(6.0)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 6.2, How.FAILED, "RuntimeError")
    watching.until(6.25)
    for rank in numbers:
        world.ranks[rank].die(6.5, TapeState.FAILED, "RuntimeError")
    world.ranks[2].die(6.5)
    world.ranks[2].heartbeat_age_s = 0.8
    watching.until(6.5)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))


def test_old_exception_is_no_sign_of_a_death() -> None:
    """An operation that failed long before a rank died is unrelated to that death."""
    world = FakeWorld(4)
    world.ranks[0].end(world.ranks[0].enter(EVERYBODY, 1.0), 2.0, How.FAILED, "RuntimeError")
    watching = Watching(world).until(6.0)
    world.ranks[2].die(6.1)
    watching.until(30.0)
    assert watching.reported == []


def test_death_is_reported_though_all_were_gone_at_the_same_check() -> None:
    """A rank is killed, gloo raises in its peers, and torchrun ends the rest, all between two polls.

    Rank 2 is gone without reporting, ranks 0 and 1 left their operation with an exception, and rank 3 showed a
    heartbeat after that: it was ended, and did not cause it.
    """
    world, numbers = stalled()
    watching = Watching(world).until(6.0)
    for rank in (0, 1):
        world.ranks[rank].end(numbers[rank], 6.1, How.FAILED, "RuntimeError")
        world.ranks[rank].die(6.25, TapeState.FAILED, "RuntimeError")
    world.ranks[2].die(6.25)
    world.ranks[3].die(6.25)
    world.ranks[2].heartbeat_age_s, world.ranks[3].heartbeat_age_s = 0.3, 0.05  # at 5.95 and at 6.2
    watching.until(6.25)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.DEAD, (2,))
    watching.until(30.0)
    assert len(watching.verdicts) == 1


def test_job_that_is_ended_as_a_whole_is_silent() -> None:
    """All ranks are killed between two polls during an operation: no rank waits for a dead one."""
    world, _ = stalled()
    watching = Watching(world).until(6.0)
    for rank in world.ranks:
        rank.die(6.1)
    watching.until(30.0)
    assert watching.reported == []


def test_run_that_is_over_is_silent() -> None:
    """Tapes of dead ranks, found by a reader that starts later, are not a stall."""
    world, _ = stalled()
    for rank in world.ranks:
        rank.die(20.0)
    watching = Watching(world, began_s=20.0).until(40.0)
    assert watching.reported == []


def test_incident_ends_with_its_ranks() -> None:
    """All waiting ranks die: the incident ends, with that outcome."""
    world, _ = stalled()
    watching = Watching(world).until(17.0)
    for rank in world.ranks:
        rank.die(17.1)
    watching.until(20.0)
    assert [end.outcome for _, end in watching.ends] == [Outcome.RANKS_ENDED]


def test_incident_ends_with_its_tapes() -> None:
    """The tapes are removed: the incident ends, and no state of the run is kept."""
    watching = Watching(stalled()[0]).until(17.0)
    (end,) = watching.detector.process([])
    assert isinstance(end, IncidentResolved)
    assert end.outcome is Outcome.OUT_OF_SIGHT
    assert watching.detector.process([]) == []


@pytest.mark.parametrize("is_over", [True, False])
def test_incident_of_a_launch_ends_with_the_run_that_comes_about(is_over: bool) -> None:
    """Ranks get their run id when their first group is there: the operation has completed, unless it is still open."""
    world, numbers = stalled()
    watching = Watching(world).until(17.0)
    if is_over:
        for rank, number in numbers.items():
            world.ranks[rank].end(number, 17.1)
    with_id = dataclasses.replace(world.snapshot(17.2), run=RUN + 1)
    ends = [event for event in watching.detector.process([with_id]) if isinstance(event, IncidentResolved)]
    assert [end.outcome for end in ends] == [Outcome.COMPLETED if is_over else Outcome.OUT_OF_SIGHT]


def test_incident_ends_with_buckets_that_fail() -> None:
    """Several operations fail while their processes are alive: the outcome of the incident is a failure."""
    world = FakeWorld(4)
    numbers, later = (
        {rank: world.ranks[rank].enter(EVERYBODY, at_s, blocking=False) for rank in (0, 1, 3)} for at_s in (5.0, 5.1)
    )
    watching = Watching(world).until(17.0)
    for rank in numbers:
        for number in (numbers[rank], later[rank]):
            world.ranks[rank].end(number, 17.1, How.FAILED, "RuntimeError")
        world.ranks[rank].state, world.ranks[rank].failure = TapeState.FAILED, "RuntimeError"
    watching.until(18.0)
    ((_, end),) = watching.ends
    assert end.outcome is Outcome.FAILED


def test_finished_rank_does_not_stall() -> None:
    """Operations that a finished rank left in flight are no waits, whether or not its process still exists."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1), 5.0, flags=Flag.ASYNC, blocking=False)
    world.ranks[0].state = TapeState.FINISHED
    watching = Watching(world).until(30.0)
    world.ranks[0].die(30.0, TapeState.FINISHED)
    watching.until(60.0)
    assert watching.reported == []


def test_all_die_before_the_stall_is_reported() -> None:
    """All ranks are killed while the verdict waits for stacks: the verdict is given as of then, and its end."""
    world, _ = stalled(late=2)
    watching = Watching(world, answers_after_s=None).until(15.5)
    assert watching.verdicts == []
    for rank in world.ranks:
        rank.die(15.6)
    watching.until(16.0)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert all(view.alive for view in given.world.ranks.values())
    watching.until(40.0)
    assert [end.outcome for _, end in watching.ends] == [Outcome.RANKS_ENDED]
    assert len(watching.verdicts) == 1


@pytest.mark.parametrize("how", [How.CALL, How.FAILED])
def test_what_was_over_before_they_died_is_no_stall(how: How) -> None:
    """Ranks that left the operation while the verdict waited for stacks, and then died, were not killed in it."""
    world, numbers = stalled(late=2)
    watching = Watching(world, answers_after_s=None).until(15.5)
    for rank, number in numbers.items():
        world.ranks[rank].end(number, 15.55, how, "RuntimeError" if how is How.FAILED else "")
    for rank in world.ranks:
        rank.die(15.6)
    watching.until(40.0)
    assert [given.verdict.kind for _, given in watching.verdicts if given.verdict.kind is VerdictKind.ABSENT] == []


@pytest.mark.parametrize(("others", "named"), [((0, 3), (2,)), ((), (1, 2))])
def test_call_that_ends_a_rank_before_the_others_have_come(others: tuple[int, ...], named: tuple[int, ...]) -> None:
    """Ranks 1 and 2 differ, and rank 1 fails. Ranks that come later show that rank 2 made the wrong call."""
    world = FakeWorld(4)
    watching = Watching(world).until(6.0)
    number = world.ranks[1].enter(EVERYBODY, 6.0, shape=(16,))
    world.ranks[2].enter(EVERYBODY, 6.0, shape=(1024,))
    world.ranks[1].end(number, 6.01, How.FAILED, "RuntimeError")
    world.ranks[1].die(6.02, TapeState.FAILED, "RuntimeError")
    watching.until(6.3)
    for rank in others:
        world.ranks[rank].enter(EVERYBODY, 6.3, shape=(16,))
    watching.until(7.0)
    ((_, given),) = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.MISMATCHED, named)


def test_mismatch_that_ended_all_ranks_is_reported_once() -> None:
    """All ranks ended because of mismatched calls: the mismatch is reported once."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 1.0)
    for rank in world.ranks:
        number = rank.enter(EVERYBODY, 5.0, dtype="float64" if rank.rank == 2 else "float32")
        rank.end(number, 5.3, How.FAILED, "RuntimeError")
        if rank.rank == 2:
            rank.die(5.4, TapeState.FAILED, "RuntimeError")
        else:
            rank.is_seen_to_die(5.5, signal.SIGTERM)
    watching = Watching(world).until(12.0)
    assert [given.verdict.kind for _, given in watching.verdicts] == [VerdictKind.MISMATCHED]
