"""Mismatched calls that completed are no cause of a later stall, unless a rank has been out of step since."""

from otel_torchdist.judge.world.mismatch import Field
from otel_torchdist.model.kinds import How
from otel_torchdist.model.reports.finding import Finding, FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.telemetry import semconv
from tests.support.worlds.detectors import EVERYBODY, Watching
from tests.support.worlds.fake_world import FakeWorld
from tests.support.worlds.judging import named, the_verdict


def metric_step(world: FakeWorld, at_s: float) -> None:
    """Let all ranks make a step in which rank 3 reduces a metric as int32, which gloo accepts."""
    world.meet(EVERYBODY, at_s)
    calls = {
        rank.rank: rank.enter(EVERYBODY, at_s, dtype="int32" if rank.rank == 3 else "float32") for rank in world.ranks
    }
    for rank, number in calls.items():
        world.ranks[rank].end(number, at_s + 0.1)


def metric_world() -> FakeWorld:
    """Build a world after three such steps."""
    world = FakeWorld(4)
    for step in range(3):
        metric_step(world, float(step))
    return world


def wait_for(world: FakeWorld, *late: int) -> None:
    """Let all ranks but `late` wait in the next all_reduce."""
    for rank in world.ranks:
        if rank.rank not in late:
            rank.enter(EVERYBODY, 5.0)


def test_absent_rank_is_named_and_not_an_old_mismatch() -> None:
    """Rank 1 is absent. Rank 3's mismatched calls have completed on all ranks."""
    world = metric_world()
    wait_for(world, 1)
    assert named(world.snapshot(25.0)) == (VerdictKind.ABSENT, (1,))


def test_rank_of_an_old_mismatch_that_is_absent_itself() -> None:
    """Rank 3 has skipped nothing: it is absent, and its mismatched metric is not the cause."""
    world = metric_world()
    wait_for(world, 3)
    assert named(world.snapshot(25.0)) == (VerdictKind.ABSENT, (3,))


def test_death_is_not_explained_by_an_old_mismatch() -> None:
    """Rank 1 dies: its death is reported, not rank 3's calls."""
    world = metric_world()
    wait_for(world, 1)
    world.ranks[1].die(6.0)
    assert named(world.snapshot(7.0)) == (VerdictKind.DEAD, (1,))


def test_old_mismatch_is_a_finding_beside_the_stall() -> None:
    """The stall and the mismatch are both reported, independently."""
    world = metric_world()
    wait_for(world, 1)
    watching = Watching(world).until(30.0)
    assert {event.verdict.ranks for _, event in watching.verdicts} == {(1,)}
    [found] = [event for _, event in watching.events if isinstance(event, Finding)]
    assert (found.kind, found.ranks) == (FindingKind.MISMATCHED, (3,))
    assert found.attributes[semconv.MISMATCH_FIELD] == Field.DTYPE.value


def test_newer_mismatch_that_does_not_end() -> None:
    """An old mismatch completed, and the newest does not: the newest is the cause."""
    world = metric_world()
    for rank in world.ranks:
        rank.enter(EVERYBODY, 5.0, "barrier" if rank.rank == 2 else "all_reduce")
    verdict = the_verdict(world.snapshot(25.0))
    assert verdict.mismatch is not None
    assert (verdict.mismatch.field, verdict.ranks, verdict.mismatch.operation_id.sequence) == (Field.OPERATION, (2,), 7)


def test_mismatch_that_is_still_open_on_one_rank() -> None:
    """A mismatch still open on one rank may be the cause, although later operations of the group have ended there."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.0)
    calls = {
        rank: world.ranks[rank].enter(EVERYBODY, 1.0, dtype="int8" if rank == 3 else "float32", blocking=False)
        for rank in range(4)
    }
    for rank in (0, 1, 3):
        world.ranks[rank].end(calls[rank], 1.1)
    world.meet(EVERYBODY, 2.0)
    assert named(world.snapshot(25.0)) == (VerdictKind.MISMATCHED, (3,))


def test_mismatch_that_raised_on_one_rank() -> None:
    """A mismatched call that raised on one rank is the cause."""
    world = FakeWorld(4)
    calls = {
        rank: world.ranks[rank].enter(EVERYBODY, 1.0, dtype="int8" if rank == 3 else "float32") for rank in range(4)
    }
    for rank in (0, 1, 2):
        world.ranks[rank].end(calls[rank], 1.1)
    world.ranks[3].end(calls[3], 1.1, How.FAILED, "RuntimeError")
    wait_for(world, 3)
    assert named(world.snapshot(25.0)) == (VerdictKind.MISMATCHED, (3,))


def test_rank_that_has_made_one_call_more() -> None:
    """Rank 2 has made an additional broadcast, and now waits in an operation that the others do not enter."""
    world = FakeWorld(4)
    for rank in world.ranks:
        if rank.rank == 2:
            rank.end(rank.enter(EVERYBODY, 1.0, "broadcast"), 1.1)
        rank.end(rank.enter(EVERYBODY, 1.0), 1.1)
        if rank.rank != 2:
            rank.end(rank.enter(EVERYBODY, 1.0, "barrier"), 1.1)
    number = world.ranks[2].enter(EVERYBODY, 5.0, "barrier")
    assert number == 3
    verdict = the_verdict(world.snapshot(25.0))
    assert verdict.mismatch is not None
    assert (verdict.mismatch.field, verdict.ranks, verdict.mismatch.operation_id.sequence) == (Field.OPERATION, (2,), 1)
