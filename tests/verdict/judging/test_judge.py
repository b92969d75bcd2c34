"""The verdict on a collective: which rank is absent or dead, and when it is the transport."""

from otel_torchdist.tape.layout import Flag, How, RecordKind, TapeState
from otel_torchdist.tape.names.model import RaisedName
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import Verdict, VerdictKind
from otel_torchdist.verdict.roll_call import Standing
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.calls import OperationId
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import verdicts
from tests.support.worlds.sentences import EVERYBODY, late_world, operation_id_of, spoken, the_verdict


def test_absent_rank_is_named_with_where_it_was_last() -> None:
    """A rank that has not entered is named, with the operation, the age, the waiting ranks, and its last record."""
    world = late_world(2).snapshot(20.4)
    verdict = the_verdict(world)
    assert (verdict.kind, verdict.ranks, verdict.waiting) == (VerdictKind.ABSENT, (2,), (0, 1, 3))
    assert spoken(world, verdict) == (
        "rank 2 has not entered all_reduce (sequence 2, default_pg) for 10.4 s; "
        "it was last in all_reduce, called in train at train.py:42; 3 of 4 ranks wait in train at train.py:42"
    )


def test_many_absent_ranks_are_named_as_a_range() -> None:
    """Ranks that are missing together are named together."""
    verdict = the_verdict(late_world(1, 2).snapshot(20.0))
    assert verdict.ranks == (1, 2)
    assert sentence(verdict, 10).startswith("ranks 1-2 have not entered all_reduce (sequence 2, default_pg) for 10.0 s")


def test_rank_that_waits_elsewhere_is_not_blamed() -> None:
    """Rank 1 is missing because it waits in another group for rank 2, which waits in a third for rank 3."""
    world = FakeWorld(4)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[1].enter(group_of(1, 2), 2.0)
    world.ranks[2].enter(group_of(2, 3, description="pair"), 3.0)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (3,))
    assert verdict.group is not None
    assert verdict.group.label == "pair"


def test_rank_that_passes_through_an_operation_is_blamed() -> None:
    """A missing rank that has been in another operation only for a moment does not wait there."""
    world = late_world(2)
    world.ranks[2].enter(group_of(2, 3), 19.9)
    assert verdicts(world.snapshot(20.0))[OperationId(*operation_id_of(world, 0))] == _absent(world, 20.0, 2)


def _absent(world: FakeWorld, now_s: float, rank: int) -> Verdict:
    verdict = Judge(world.snapshot(now_s), THRESHOLD_NS).verdict_on(operation_id_of(world, 0))
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (rank,))
    return verdict


def test_block_outweighs_what_is_in_flight() -> None:
    """Rank 1 blocks in one group and has an older operation in flight in another: the block is what holds it."""
    world = FakeWorld(4)
    world.ranks[1].enter(group_of(1, 3), 1.0, blocking=False, flags=Flag.ASYNC)
    world.ranks[1].enter(group_of(1, 2), 2.0)
    world.ranks[0].enter(group_of(0, 1), 3.0)
    verdict = Judge(world.snapshot(20.0), THRESHOLD_NS).verdict_on(operation_id_of(world, 0))
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))


def test_all_entered_is_transport_only_after_the_threshold() -> None:
    """When the last rank has just entered, nothing is reported. Ten seconds later none has left: transport."""
    world = late_world(2)
    world.ranks[2].enter(EVERYBODY, 21.0)
    assert set(verdicts(world.snapshot(30.9)).values()) == {None}
    verdict = the_verdict(world.snapshot(31.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.TRANSPORT, ())
    assert sentence(verdict, 21).startswith(
        "all 4 ranks have entered all_reduce (sequence 2, default_pg), but it has not"
    )


def test_some_came_out() -> None:
    """Some members left and others did not: transport, and the sentence names those that left."""
    world = late_world()
    world.ranks[1].end(2, 11.0)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.waiting) == (VerdictKind.TRANSPORT, (0, 2, 3))
    assert "3 of 4 ranks wait; rank 1 has left it" in sentence(verdict, 15)


def test_member_that_failed_is_named_under_transport() -> None:
    """A member that had entered and got an exception while the others wait is named with it."""
    world = late_world()
    world.ranks[1].end(2, 12.0, How.FAILED, "RuntimeError")
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.TRANSPORT, (1,))
    assert "Rank 1 raised RuntimeError" in sentence(verdict, 15)


def test_dead_rank() -> None:
    """A rank whose lock is free and whose tape is not finished is dead, whether it raised or was killed."""
    world = late_world(2)
    world.ranks[2].die(15.0)
    verdict = the_verdict(world.snapshot(16.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert sentence(verdict, 6) == (
        "rank 2 is dead, and all_reduce (sequence 2, default_pg) has been blocked for 6.0 s; "
        "it was last in all_reduce, called in train at train.py:42; 3 of 4 ranks wait in train at train.py:42. "
        "The process of rank 2 is gone"
    )
    world.ranks[2].raised = RaisedName("ValueError", "loss is nan", "step", "/home/ada/train.py", 57)
    world.ranks[2].die(15.0, TapeState.FAILED, "ValueError")
    assert sentence(the_verdict(world.snapshot(16.0)), 6) == (
        "rank 2 ended with ValueError, and all_reduce (sequence 2, default_pg) has been blocked for 6.0 s; "
        'it raised ValueError in step at train.py:57: "loss is nan"; 3 of 4 ranks wait in train at train.py:42'
    )
    world.ranks[2].raised = None
    assert sentence(the_verdict(world.snapshot(16.0)), 6) == (
        "rank 2 ended with ValueError, and all_reduce (sequence 2, default_pg) has been blocked for 6.0 s; "
        "it was last in all_reduce, called in train at train.py:42; 3 of 4 ranks wait in train at train.py:42"
    )


def test_first_to_die_is_named() -> None:
    """Launchers end the others after the first death: those are not named."""
    world = late_world(2)
    world.ranks[2].die(15.0)
    world.ranks[0].die(16.0)
    assert the_verdict(world.snapshot(17.0)).ranks == (2,)


def test_rank_that_ended_cleanly_is_absent() -> None:
    """A finished member will not enter: absent, and the sentence states that it ended, and cleanly if that is known."""
    world = late_world(2)
    world.ranks[2].die(15.0, TapeState.FINISHED)
    verdict = the_verdict(world.snapshot(21.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert verdict.roll.standings[2] is Standing.ENDED
    said = sentence(verdict, 11)
    assert said.startswith("rank 2 has finished before all_reduce (")
    assert "), which has been blocked for 11.0 s; it was last in all_reduce, called in " in said
    world.ranks[2].is_seen_to_die(15.0, 0, TapeState.FINISHED)
    assert "rank 2 has exited with code 0 before all_reduce (" in sentence(the_verdict(world.snapshot(21.0)), 11)


def test_creation_of_a_group() -> None:
    """A rank missing from the creation of a group is absent there."""
    world = FakeWorld(2)
    pair = group_of(0, 1, description="mesh_tp")
    world.ranks[0].enter(pair, 1.0, "new_group", kind=RecordKind.RENDEZVOUS)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (1,))
    assert sentence(verdict, 14).startswith("rank 1 has not joined new_group (mesh_tp) for 14.0 s")
