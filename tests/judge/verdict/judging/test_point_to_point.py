"""Verdicts on sends and receives: the missing side, and cases in which it is unknown."""

import dataclasses
import signal

import pytest

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.verdict import Doubt
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.kinds import Flag, TapeState
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import EVERYBODY, located_verdict, named, operation_id_of

P2P = Flag.POINT_TO_POINT


@pytest.mark.parametrize(("waiting", "missing"), [("recv", "send"), ("send", "recv")])
def test_point_to_point_names_the_peer_that_has_not_come(waiting: str, missing: str) -> None:
    """The missing side is named, with the operation that it should have entered."""
    world = FakeWorld(4)
    world.ranks[0].enter(EVERYBODY, 1.0, waiting, flags=P2P, peer=3, tag=5)
    world.ranks[3].enter(EVERYBODY, 2.0, missing, flags=P2P, peer=0, tag=6)
    verdict = Judge(world.snapshot(15.0), THRESHOLD_NS).verdict_on(operation_id_of(world, 0))
    assert verdict is not None
    # Rank 3 waits with another tag for rank 0, which waits for rank 3: either tag may be the wrong one.
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (0, 3))
    ends = "from rank 3 to rank 0" if waiting == "recv" else "from rank 0 to rank 3"
    assert describe_verdict(verdict, 14) == (
        "ranks 0,3 have waited for each other for 14.0 s, and their tags differ: "
        f"rank 0 in {waiting} (tag 5) at train.py:42; rank 3 in {missing} (tag 6) at train.py:42. "
        f"Rank 0 waits for rank 3 in {waiting} ({ends}, tag 5, sequence 1, default_pg) at train, train.py:42; "
        f"rank 3 waits for rank 0 in {missing} ({ends}, tag 6, sequence 1, default_pg) at train, train.py:42"
    )
    world.ranks[3].end(1, 3.0)
    verdict = located_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks, verdict.members) == (VerdictKind.ABSENT, (3,), 2)
    assert describe_verdict(verdict, 14).startswith(
        f"rank 3 has not entered {missing} ({ends}, tag 5, sequence 1, default_pg) for 14.0 s; "
        f"it was last in {missing}, called in train at train.py:42; 1 of 2 ranks waits in train at train.py:42"
    )


def test_receive_from_any_rank_blames_no_rank() -> None:
    """A receive from any rank does not show which peer should have sent."""
    world = FakeWorld(4)
    world.ranks[0].enter(EVERYBODY, 1.0, "recv", flags=P2P, peer=-1)
    verdict = located_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.ANY_SOURCE)


def test_receive_from_any_rank_upsets_the_count() -> None:
    """After a send to a receive from any rank, the counts of both sides differ, so they are not compared."""
    world = FakeWorld(2)
    pair = group_of(0, 1)
    world.ranks[1].end(world.ranks[1].enter(pair, 0.5, "send", flags=P2P, peer=0), 0.6)
    world.ranks[0].end(world.ranks[0].enter(pair, 0.5, "recv", flags=P2P, peer=-1), 0.6)
    world.ranks[0].enter(pair, 1.0, "recv", flags=P2P, peer=1)
    verdict = located_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.UNALIGNED)


@pytest.mark.parametrize("counted", [1, 5, 7])
@pytest.mark.parametrize(("waiting", "posted"), [("recv", "send"), ("send", "recv")])
def test_count_that_one_side_has_forgotten(waiting: str, posted: str, counted: int) -> None:
    """A peer that has forgotten its count restarts it, so its sequence numbers are not used."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1), 1.0, waiting, flags=P2P, peer=1, tag=9, sequence=5)
    number = world.ranks[1].enter(
        group_of(0, 1, aligned=False), 2.0, posted, flags=P2P, peer=0, tag=9, sequence=counted
    )
    for _ in range(2):  # while the peer is in it, and afterwards
        snapshot = world.snapshot(15.0)
        for rank in {0, 1 if number in world.ranks[1].open else 0}:
            verdict = Judge(snapshot, THRESHOLD_NS).verdict_on(operation_id_of(world, rank))
            assert verdict is not None
            assert (verdict.kind, verdict.ranks) == (VerdictKind.UNKNOWN, ())
        if number in world.ranks[1].open:
            world.ranks[1].end(number, 3.0)


def test_receive_whose_sender_waits_in_a_collective() -> None:
    """Rank 0 waits for a send of rank 1, which waits for rank 0 in a barrier: the receive is unmatched."""
    world = FakeWorld(2)
    pair = group_of(0, 1, description="pair")
    world.ranks[0].enter(pair, 1.0, "recv", flags=P2P, peer=1, tag=5)
    world.ranks[1].enter(pair, 2.0, "barrier")
    verdict = located_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (1,))
    assert describe_verdict(verdict, 14).startswith(
        "rank 1 has no matching send for recv (from rank 1 to rank 0, tag 5, sequence 1, pair), "
        "which has been blocked for 14.0 s; "
        "it is in barrier"
    )


def test_receive_whose_sender_has_ended() -> None:
    """A peer that has ended cleanly will not send."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1), 1.0, "recv", flags=P2P, peer=1)
    world.ranks[1].die(2.0, TapeState.FINISHED)
    assert named(world.snapshot(15.0)) == (VerdictKind.UNMATCHED, (1,))


def test_two_receives_from_each_other() -> None:
    """Both ranks receive first and send later: they wait for each other, and no call is missing."""
    world = FakeWorld(2)
    for rank in (0, 1):
        world.ranks[rank].enter(group_of(0, 1), 1.0 + rank, "recv", flags=P2P, peer=1 - rank)
    verdict = located_verdict(world.snapshot(15.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1))
    assert describe_verdict(verdict, 14) == (
        "ranks 0-1 have waited for each other for 14.0 s in recv at train, train.py:42: "
        "rank 0 for rank 1, rank 1 for rank 0"
    )


def test_message_of_another_size() -> None:
    """If a receiver expects less than is sent, its backend ends it: sizes and both lines are stated, not the death."""
    world = FakeWorld(2)
    pair = group_of(0, 1, description="pair")
    sends = CallSiteName("forward", "/home/user/stage.py", 12)
    receives = CallSiteName("load", "/home/user/stage.py", 14)
    world.ranks[0].enter(pair, 1.0, "send", flags=P2P, peer=1, shape=(24, 8), frames=(sends,))
    world.ranks[1].enter(pair, 1.0, "recv", flags=P2P, peer=0, shape=(16, 8), frames=(receives,))
    world.ranks[1].is_seen_to_die(1.1, signal.SIGABRT)
    verdict = located_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (0, 1))
    assert describe_verdict(verdict, 24).startswith(
        "rank 0 sends 192 elements to rank 1, which expects 128, "
        "in send (from rank 0 to rank 1, tag 0, sequence 1, pair), "
        "sent at forward, stage.py:12 and received at load, stage.py:14"
    )


@pytest.mark.parametrize(("backend", "kind"), [("gloo", VerdictKind.DEAD), ("nccl", VerdictKind.MISMATCHED)])
def test_receiver_with_room_for_more(backend: str, kind: VerdictKind) -> None:
    """With gloo, messages may be smaller than the buffer, so a receiver that is killed has died."""
    world, pair = FakeWorld(2), group_of(0, 1, description="pair")
    pair = dataclasses.replace(pair, name=dataclasses.replace(pair.name, backend=backend))
    for rank, name, size in ((0, "send", 8), (1, "recv", 16)):
        world.ranks[rank].groups[pair.key] = pair
        world.ranks[rank].enter(pair, 1.0, name, flags=P2P, peer=1 - rank, shape=(size,))
    world.ranks[1].is_seen_to_die(1.1, signal.SIGKILL)
    verdict = located_verdict(world.snapshot(25.0))
    assert verdict.kind is kind


STAGE = CallSiteName("recv_forward", "/home/user/stage.py", 17)


def pipeline(world: FakeWorld, steps: int) -> None:
    """Let rank 1 send to rank 3 in each step, which receives at a separate line."""
    for step in range(steps):
        for rank, name, peer in ((1, "send", 3), (3, "recv", 1)):
            number = world.ranks[rank].enter(EVERYBODY, step, name, flags=P2P, peer=peer, frames=(STAGE,))
            world.ranks[rank].end(number, step + 0.1)


@pytest.mark.parametrize("line", [17, 40])
def test_receive_from_another_rank_than_before(line: int) -> None:
    """If a line that always received from rank 1 now receives from rank 2, while rank 1 sends, its rank is named.

    A receive from a new line may be intended, and then rank 2 is named.
    """
    world, pair = FakeWorld(4), group_of(2, 3, description="tp")
    pipeline(world, 3)
    world.ranks[1].enter(EVERYBODY, 4.0, "send", flags=P2P, peer=3)
    frame = dataclasses.replace(STAGE, line=line)
    world.ranks[3].enter(EVERYBODY, 4.0, "recv", flags=P2P, peer=2, frames=(frame,))
    world.ranks[2].enter(pair, 4.0)
    verdict = located_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (3,) if line == 17 else (2,))
    if line == 17:
        assert describe_verdict(verdict, 21).startswith(
            "rank 3 has no matching recv for send (from rank 1 to rank 3, tag 0, sequence 4, default_pg), "
            "which has been blocked for 21.0 s; it is in recv (from rank 2 to rank 3, tag 0)"
        )


def test_send_to_another_rank_than_before() -> None:
    """The same for a send: of the ranks that wait for each other, the one that sends to a new peer is named."""
    world, pair = FakeWorld(4), group_of(2, 3, description="tp")
    pipeline(world, 3)
    world.ranks[1].enter(EVERYBODY, 4.0, "send", flags=P2P, peer=2, frames=(STAGE,))
    world.ranks[3].enter(EVERYBODY, 4.0, "recv", flags=P2P, peer=1)
    world.ranks[2].enter(pair, 4.0)
    assert named(world.snapshot(25.0)) == (VerdictKind.UNMATCHED, (1,))
