"""What is not claimed: ranks that do not report, counts that cannot be compared, records that were lost."""

from otel_torchdist.verdict.model import Doubt, VerdictKind
from otel_torchdist.verdict.wording.sentence import sentence
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.sentences import late_world, the_verdict


def test_other_nodes_do_not_report() -> None:
    """All local ranks have entered and the others do not report: unknown, with coverage, and no rank is named."""
    world = late_world(2, 3)
    verdict = the_verdict(world.snapshot(21.0, only=(0, 1)))
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.SILENT, ())
    assert (verdict.reporting, verdict.members) == (2, 4)
    assert sentence(verdict, 11) == (
        "all_reduce (sequence 2, default_pg) has not completed after 11.0 s, "
        "although all ranks that report have entered it; "
        "rank 0 is in all_reduce, called in train at train.py:42; 2 of 4 ranks wait. 2 of 4 ranks report"
    )


def test_absent_rank_is_named_though_others_do_not_report() -> None:
    """That a local rank has not entered is certain, whatever the other nodes do; the sentence states the coverage."""
    verdict = the_verdict(late_world(1, 2).snapshot(21.0, only=(0, 1)))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))
    assert sentence(verdict, 11).endswith("2 of 4 ranks report")


def test_unaligned_sequence_decides_nothing() -> None:
    """A group first seen after it was in use has its own counts on each rank: no rank is blamed by them."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1, aligned=False), 1.0)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.UNALIGNED)


def test_rank_whose_own_count_is_unaligned_is_not_blamed() -> None:
    """The waiting rank can compare, but the missing one was instrumented late."""
    world = FakeWorld(2)
    world.ranks[1].enter(group_of(0, 1, aligned=False), 0.5)
    world.ranks[1].end(1, 0.6)
    for at_s in (0.5, 1.0):
        number = world.ranks[0].enter(group_of(0, 1), at_s)
        if at_s < 1:
            world.ranks[0].end(number, 0.6)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNKNOWN, ())


def test_lost_records_blame_no_rank() -> None:
    """Records of the missing rank were overwritten unread: it may have entered, so it is not blamed."""
    world = late_world(2)
    world.snapshot(11.0)
    world.ranks[2].lose_records()
    verdict = the_verdict(world.snapshot(21.0))
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.RECORDS_LOST, ())


def test_operation_that_went_out_of_sight_has_not_come_out() -> None:
    """A rank's records were lost, including its operation: whether it completed is not known."""
    world = late_world()
    world.snapshot(11.0)
    rank = world.ranks[2]
    rank.end(next(iter(rank.open)), 12.0)
    rank.lose_records()
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.RECORDS_LOST)
