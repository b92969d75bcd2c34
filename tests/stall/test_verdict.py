"""The verdict: who is blamed, for what, and what is not said."""

import pytest

from otel_torchdist.stall.judge import Judge
from otel_torchdist.stall.roll_call import Standing
from otel_torchdist.stall.sentence import sentence
from otel_torchdist.stall.verdict import Doubt, Verdict, VerdictKind, locate
from otel_torchdist.stall.world import Site, WorldSnapshot
from otel_torchdist.tape.layout import Flag, How, RecordKind, TapeState
from tests.stall import judging
from tests.stall.judging import verdicts
from tests.stall.simulated_world import THRESHOLD_NS, SimulatedWorld, group_of

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")
P2P = Flag.POINT_TO_POINT


def the_verdict(world: WorldSnapshot) -> Verdict:
    """The one verdict to which every waiting operation leads, with places."""
    return locate(world, judging.the_verdict(world))


def spoken(world: WorldSnapshot, verdict: Verdict) -> str:
    """The verdict's sentence."""
    return sentence(verdict, (world.taken_ns - verdict.since_ns) / 1e9)


def late_world(*late: int, size: int = 4) -> SimulatedWorld:
    """All ranks but `late` have been in an all_reduce since second 10."""
    world = SimulatedWorld(size)
    world.meet(EVERYBODY, 1.0)
    for rank in set(range(size)) - set(late):
        world.ranks[rank].enter(EVERYBODY, 10.0)
    return world


def test_absent_rank_is_named_with_where_it_was_last() -> None:
    """One rank has not entered: it is named, with the operation, the age, who waits, and its last record."""
    world = late_world(2).snapshot(20.4)
    verdict = the_verdict(world)
    assert (verdict.kind, verdict.ranks, verdict.waiting) == (VerdictKind.ABSENT, (2,), (0, 1, 3))
    assert spoken(world, verdict) == (
        "rank 2 has not entered all_reduce (sequence 2, default_pg) for 10.4 s; 3 of 4 ranks wait; "
        "it was last in all_reduce, called in train at train.py:42"
    )


def test_many_absent_ranks_are_named_as_a_range() -> None:
    """Ranks that are missing together are named together."""
    verdict = the_verdict(late_world(1, 2).snapshot(20.0))
    assert verdict.ranks == (1, 2)
    assert sentence(verdict, 10).startswith("ranks 1-2 have not entered all_reduce (sequence 2, default_pg) for 10.0 s")


def test_rank_that_waits_elsewhere_is_not_blamed() -> None:
    """Rank 1 is missing because it waits in another group for rank 2, which waits in a third for rank 3."""
    world = SimulatedWorld(4)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[1].enter(group_of(1, 2), 2.0)
    world.ranks[2].enter(group_of(2, 3, description="pair"), 3.0)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (3,))
    assert verdict.group is not None
    assert verdict.group.label == "pair"


def test_rank_that_passes_through_an_operation_is_blamed() -> None:
    """A missing rank that has been in another operation for a moment only does not wait there."""
    world = late_world(2)
    world.ranks[2].enter(group_of(2, 3), 19.9)
    assert verdicts(world.snapshot(20.0))[Site(*_site_of(world, 0))] == _absent(world, 20.0, 2)


def _site_of(world: SimulatedWorld, rank: int) -> Site:
    return next(iter(world.ranks[rank].open.values())).site


def _absent(world: SimulatedWorld, now_s: float, rank: int) -> Verdict:
    verdict = Judge(world.snapshot(now_s), THRESHOLD_NS).verdict_on(_site_of(world, 0))
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (rank,))
    return verdict


def test_circle_names_all_ranks_and_where_each_waits() -> None:
    """Ranks 0, 1 and 2 wait for each other in pairs: all are listed with their groups, from wherever one looks."""
    world = SimulatedWorld(3)
    pairs = [group_of(0, 1, description="a"), group_of(1, 2, description="b"), group_of(0, 2, description="c")]
    for rank, pair in enumerate(pairs):
        world.ranks[rank].enter(pair, 1.0 + (rank + 1) % 3)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1, 2))
    assert [(link.rank, link.group.label) for link in verdict.circle if link.group] == [(0, "a"), (1, "b"), (2, "c")]
    assert sentence(verdict, 19).startswith(
        "ranks 0-2 wait for each other for 19.0 s: rank 0 in all_reduce (sequence 1, a), "
        "rank 1 in all_reduce (sequence 1, b), rank 2 in all_reduce (sequence 1, c); "
    )


def test_two_groups_in_opposite_order() -> None:
    """Two ranks begin with different groups of the same members: a circle of two."""
    world = SimulatedWorld(2)
    world.ranks[0].enter(group_of(0, 1, description="a"), 1.0)
    world.ranks[1].enter(group_of(0, 1, nth=1, description="b"), 2.0)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1))
    assert len(verdict.circle) == 2


def test_circle_that_may_be_none() -> None:
    """Two of its ranks are not seen to block, so they may be busy: all are listed, none is blamed."""
    world = SimulatedWorld(3)
    for rank, pair in enumerate([group_of(0, 1), group_of(1, 2), group_of(0, 2)]):
        world.ranks[rank].enter(pair, 1.0, blocking=rank == 0, flags=Flag.ASYNC)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.CYCLE, (0, 1, 2))
    assert sentence(verdict, 19).startswith("ranks 0-2 wait for each other, among others in all_reduce (sequence 1")


def test_circle_through_a_rank_that_may_be_busy() -> None:
    """Rank 1 only has an operation in flight, nobody sees it block: then it is absent where rank 0 waits for it."""
    world = SimulatedWorld(2)
    world.ranks[0].enter(group_of(0, 1, nth=0), 1.0)
    world.ranks[1].enter(group_of(0, 1, nth=1), 2.0, blocking=False, flags=Flag.ASYNC)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))


def test_block_outweighs_what_is_in_flight() -> None:
    """Rank 1 blocks in one group and has an older operation in flight in another: it is the block that holds it."""
    world = SimulatedWorld(4)
    world.ranks[1].enter(group_of(1, 3), 1.0, blocking=False, flags=Flag.ASYNC)
    world.ranks[1].enter(group_of(1, 2), 2.0)
    world.ranks[0].enter(group_of(0, 1), 3.0)
    verdict = Judge(world.snapshot(20.0), THRESHOLD_NS).verdict_on(_site_of(world, 0))
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))


def test_all_entered_is_transport_only_after_the_threshold() -> None:
    """The last rank has just come in: nothing is said. Ten seconds later nobody has come out: transport."""
    world = late_world(2)
    world.ranks[2].enter(EVERYBODY, 21.0)
    assert set(verdicts(world.snapshot(30.9)).values()) == {None}
    verdict = the_verdict(world.snapshot(31.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.TRANSPORT, ())
    assert sentence(verdict, 21).startswith(
        "all 4 ranks have entered all_reduce (sequence 2, default_pg) and it is not"
    )


def test_some_came_out() -> None:
    """Some members came out and others did not: transport, and the sentence says who came out."""
    world = late_world()
    world.ranks[1].end(2, 11.0)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.waiting) == (VerdictKind.TRANSPORT, (0, 2, 3))
    assert "3 of 4 ranks wait; rank 1 came out" in sentence(verdict, 15)


def test_member_that_failed_is_named_under_transport() -> None:
    """A member that had entered and got an exception while the others wait is named with it."""
    world = late_world()
    world.ranks[1].end(2, 12.0, How.FAILED, "RuntimeError")
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.TRANSPORT, (1,))
    assert "rank 1 got RuntimeError" in sentence(verdict, 15)


def test_dead_rank() -> None:
    """A rank whose lock is free and whose tape is not finished is dead, whether it raised or was killed."""
    world = late_world(2)
    world.ranks[2].die(15.0)
    verdict = the_verdict(world.snapshot(16.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert sentence(verdict, 6) == (
        "rank 2 is dead, and all_reduce (sequence 2, default_pg) has waited for 6.0 s; 3 of 4 ranks wait; "
        "the process of rank 2 is gone; it was last in all_reduce, called in train at train.py:42"
    )
    world.ranks[2].die(15.0, TapeState.FAILED, "ValueError")
    assert "rank 2 ended with ValueError" in sentence(the_verdict(world.snapshot(16.0)), 6)


def test_first_to_die_is_named() -> None:
    """Launchers end the others after the first death: those are not named."""
    world = late_world(2)
    world.ranks[2].die(15.0)
    world.ranks[0].die(16.0)
    assert the_verdict(world.snapshot(17.0)).ranks == (2,)


def test_rank_that_ended_in_good_order_is_absent() -> None:
    """A member that has finished will not come: absent, and the sentence says that it ended."""
    world = late_world(2)
    world.ranks[2].die(15.0, TapeState.FINISHED)
    verdict = the_verdict(world.snapshot(21.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert verdict.roll.standings[2] is Standing.ENDED
    assert "rank 2 has ended in good order" in sentence(verdict, 11)


def test_other_nodes_do_not_report() -> None:
    """All local ranks have entered and the others do not report: unknown, with coverage, and nobody is named."""
    world = late_world(2, 3)
    verdict = the_verdict(world.snapshot(21.0, only=(0, 1)))
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.SILENT, ())
    assert (verdict.reporting, verdict.members) == (2, 4)
    assert sentence(verdict, 11) == (
        "all_reduce (sequence 2, default_pg) is not over after 11.0 s, and all ranks that report have entered; "
        "2 of 4 ranks wait; rank 0 is in all_reduce, called in train at train.py:42; 2 of 4 ranks report"
    )


def test_absent_rank_is_named_though_others_do_not_report() -> None:
    """That a local rank has not entered is sure, whatever the other nodes do; coverage stands in the sentence."""
    verdict = the_verdict(late_world(1, 2).snapshot(21.0, only=(0, 1)))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))
    assert sentence(verdict, 11).endswith("2 of 4 ranks report")


def test_unaligned_sequence_says_nothing() -> None:
    """A group that was first seen in mid-life has counts of its own on each rank: nobody is blamed by them."""
    world = SimulatedWorld(2)
    world.ranks[0].enter(group_of(0, 1, aligned=False), 1.0)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.UNALIGNED)


def test_rank_whose_own_count_is_unaligned_is_not_blamed() -> None:
    """The waiting rank can compare, but the missing one was instrumented in mid-life."""
    world = SimulatedWorld(2)
    world.ranks[1].enter(group_of(0, 1, aligned=False), 0.5)
    world.ranks[1].end(1, 0.6)
    for at_s in (0.5, 1.0):
        number = world.ranks[0].enter(group_of(0, 1), at_s)
        if at_s < 1:
            world.ranks[0].end(number, 0.6)
    verdict = the_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNKNOWN, ())


def test_lost_records_blame_nobody() -> None:
    """Records of the missing rank were overwritten unread: it may have entered, so it is not blamed."""
    world = late_world(2)
    world.ranks[2].losses = 1
    verdict = the_verdict(world.snapshot(21.0))
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.RECORDS_LOST, ())


def test_operation_that_went_out_of_sight_has_not_come_out() -> None:
    """Records of a rank were lost, its operation with them: whether it came out is not known."""
    world = late_world()
    world.ranks[2].open.clear()
    world.ranks[2].losses = 1
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.RECORDS_LOST)


@pytest.mark.parametrize(("waiting", "missing"), [("recv", "send"), ("send", "recv")])
def test_point_to_point_names_the_peer_that_has_not_come(waiting: str, missing: str) -> None:
    """The side that is not posted is named, as the operation that it should have entered."""
    world = SimulatedWorld(4)
    world.ranks[0].enter(EVERYBODY, 1.0, waiting, flags=P2P, peer=3, tag=5)
    world.ranks[3].enter(EVERYBODY, 2.0, missing, flags=P2P, peer=0, tag=6)
    verdict = Judge(world.snapshot(15.0), THRESHOLD_NS).verdict_on(_site_of(world, 0))
    assert verdict is not None
    # Rank 3 waits with another tag for rank 0, which waits for rank 3.
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (3,))
    world.ranks[3].end(1, 3.0)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks, verdict.members) == (VerdictKind.ABSENT, (3,), 2)
    ends = "from rank 3 to rank 0" if waiting == "recv" else "from rank 0 to rank 3"
    assert sentence(verdict, 14).startswith(
        f"rank 3 has not entered {missing} ({ends}, tag 5, sequence 1, default_pg) for 14.0 s; 1 of 2 ranks waits"
    )


def test_receive_from_anybody_blames_nobody() -> None:
    """Nobody knows which peer should have sent."""
    world = SimulatedWorld(4)
    world.ranks[0].enter(EVERYBODY, 1.0, "recv", flags=P2P, peer=-1)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.ANY_SOURCE)


def test_receive_from_anybody_upsets_the_count() -> None:
    """A send taken by a receive from anybody leaves the counts of both sides apart: they are not compared."""
    world = SimulatedWorld(2)
    pair = group_of(0, 1)
    world.ranks[1].end(world.ranks[1].enter(pair, 0.5, "send", flags=P2P, peer=0), 0.6)
    world.ranks[0].end(world.ranks[0].enter(pair, 0.5, "recv", flags=P2P, peer=-1), 0.6)
    world.ranks[0].enter(pair, 1.0, "recv", flags=P2P, peer=1)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.UNALIGNED)


def test_creation_of_a_group() -> None:
    """A rank that does not come to the creation of a group is absent there."""
    world = SimulatedWorld(2)
    pair = group_of(0, 1, description="mesh_tp")
    world.ranks[0].enter(pair, 1.0, "new_group", kind=RecordKind.RENDEZVOUS)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (1,))
    assert sentence(verdict, 14).startswith("rank 1 has not come to new_group (mesh_tp) for 14.0 s")


def test_rank_that_never_came_at_all() -> None:
    """All ranks that are known wait in `init_process_group`: those of which nothing was seen are named as that."""
    world = SimulatedWorld(4)
    for rank in (0, 1, 3):
        world.ranks[rank].enter(EVERYBODY, 1.0, "init_process_group", kind=RecordKind.RENDEZVOUS)
    verdict = the_verdict(world.snapshot(15.0, only=(0, 1, 3)))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.RENDEZVOUS, (2,))
    said = sentence(verdict, 14)
    assert said.startswith("rank 2 has not come to init_process_group (default_pg) for 14.0 s; 3 of 4 ranks wait")
    assert said.endswith("rank 2 has not been seen at all; 3 of 4 ranks report")


@pytest.mark.parametrize(("state", "how"), [("T", "stopped by a signal"), ("t", "held by a debugger")])
def test_stopped_process_is_frozen(state: str, how: str) -> None:
    """A missing rank that the kernel does not let run is frozen, and the sentence says how."""
    world = late_world(2)
    world.ranks[2].stopped, world.ranks[2].stopped_since_s = state, 19.0
    picture = world.snapshot(20.0)
    verdict = the_verdict(picture)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.FROZEN, (2,))
    where = "has not entered all_reduce (sequence 2, default_pg) for 10.0 s; 3 of 4 ranks wait"
    assert spoken(picture, verdict).startswith(f"rank 2 is frozen ({how}) and {where}")


def test_short_uninterruptible_sleep_is_not_frozen() -> None:
    """A process that reads from a disk sleeps like that for moments; after three seconds it is frozen."""
    world = late_world(2)
    world.ranks[2].stopped, world.ranks[2].stopped_since_s = "D", 20.0
    assert the_verdict(world.snapshot(22.9)).kind is VerdictKind.ABSENT
    assert the_verdict(world.snapshot(23.0)).kind is VerdictKind.FROZEN


def test_frozen_inside_an_operation() -> None:
    """All have entered, and one of them cannot run: it is frozen, not the network."""
    world = late_world()
    world.ranks[1].stopped = "T"
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.FROZEN, (1,))
    assert sentence(verdict, 15).startswith(
        "rank 1 is frozen (stopped by a signal) inside all_reduce (sequence 2, default_pg) for 15.0 s"
    )


def test_frozen_rank_elsewhere_is_found() -> None:
    """Rank 1 is missing because it waits for rank 2, which is frozen: rank 2 is blamed."""
    world = SimulatedWorld(3)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[1].enter(group_of(1, 2), 2.0)
    world.ranks[2].stopped = "T"
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.FROZEN, (2,))


def test_receive_whose_sender_waits_in_a_collective() -> None:
    """Rank 0 receives what rank 1 does not send: that one waits for rank 0 in a barrier. There is no send."""
    world = SimulatedWorld(2)
    pair = group_of(0, 1, description="pair")
    world.ranks[0].enter(pair, 1.0, "recv", flags=P2P, peer=1, tag=5)
    world.ranks[1].enter(pair, 2.0, "barrier")
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (1,))
    assert sentence(verdict, 14).startswith(
        "rank 1 has no send for recv (from rank 1 to rank 0, tag 5, sequence 1, pair), which has waited for 14.0 s; "
        "1 of 2 ranks waits; it is in barrier"
    )


def test_receive_whose_sender_has_ended() -> None:
    """A peer that has ended in good order will not send."""
    world = SimulatedWorld(2)
    world.ranks[0].enter(group_of(0, 1), 1.0, "recv", flags=P2P, peer=1)
    world.ranks[1].die(2.0, TapeState.FINISHED)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (1,))


def test_two_receives_from_each_other() -> None:
    """Both sides receive first and would send later: they wait for each other, and neither lacks anything else."""
    world = SimulatedWorld(2)
    for rank in (0, 1):
        world.ranks[rank].enter(group_of(0, 1), 1.0 + rank, "recv", flags=P2P, peer=1 - rank)
    verdict = the_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1))


def test_frozen_process_is_said_to_be_frozen() -> None:
    """A rank whose heartbeat has stopped does not answer: the sentence says for how long its threads have not run."""
    world = late_world(2)
    world.ranks[2].heartbeat_age_s = 12.0
    assert the_sentence_of(world).endswith(
        "it was last in all_reduce, called in train at train.py:42, and its Python threads have not run for 12.0 s"
    )


def the_sentence_of(world: SimulatedWorld) -> str:
    """The sentence 11 seconds after the stall began."""
    picture = world.snapshot(21.0)
    return spoken(picture, the_verdict(picture))
