"""Ranks that only wait are not blamed: pipeline stages, members of a group that one has not created, threads."""

import dataclasses

import pytest

from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.verdict.model import Doubt, VerdictKind
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.calls import GroupView
from otel_torchdist.world.mismatch import Field
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.sentences import spoken, the_verdict
from tests.support.worlds.watched_world import Watching

P2P = Flag.POINT_TO_POINT
THREE = group_of(0, 1, 2, description="default_pg")


def receive(world: FakeWorld, rank: int, source: int, at_s: float) -> None:
    """Wait in a receive."""
    world.ranks[rank].enter(THREE, at_s, "recv", flags=P2P, peer=source)


@pytest.mark.parametrize("since", [(1.0, 1.5, 1.6), (1.5, 1.0, 1.6), (1.6, 1.5, 1.0)])
def test_stage_that_forgot_to_send_is_named(since: tuple[float, float, float]) -> None:
    """Rank 2 owes rank 1 a send and waits in the all_reduce: it is named, whichever rank has waited longest."""
    world = FakeWorld(3)
    receive(world, 0, 1, since[0])
    receive(world, 1, 2, since[1])
    world.ranks[2].enter(THREE, since[2])
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (2,))
    assert sentence(verdict, 20).startswith(
        "rank 2 has no matching send for recv (from rank 2 to rank 1, tag 0, sequence 1"
    )


def test_first_stage_that_forgot_to_send_is_named() -> None:
    """The same in the other direction: rank 0 owes rank 1 a send, and rank 2 waits behind that."""
    world = FakeWorld(3)
    receive(world, 2, 1, 1.0)
    receive(world, 1, 0, 1.5)
    world.ranks[0].enter(THREE, 1.6)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.UNMATCHED, (0,))


def test_peer_that_waits_for_a_third_rank_may_come_yet() -> None:
    """0 receives from 1, which is in a collective with 2, which receives from 0: a circle, and no send is missing."""
    world = FakeWorld(3)
    receive(world, 0, 1, 1.0)
    world.ranks[1].enter(group_of(1, 2, description="tp"), 1.5)
    receive(world, 2, 0, 1.6)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1, 2))


# --- creation of groups ---------------------------------------------------------------------------------------------


def create(world: FakeWorld, rank: int, group: GroupView, at_s: float) -> None:
    """Wait in the creation of a group."""
    world.ranks[rank].enter(group, at_s, "new_group", kind=RecordKind.RENDEZVOUS)


def test_rank_that_left_out_a_creation_is_named() -> None:
    """Ranks 0 and 1 create a group while rank 2 is in the next collective: rank 2 is named, and their line."""
    world = FakeWorld(3)
    world.meet(THREE, 0.5)
    mesh = group_of(0, 1, 2, nth=1, description="mesh")
    create(world, 0, mesh, 1.0)
    create(world, 1, mesh, 1.1)
    world.ranks[2].enter(THREE, 0.9)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (2,))
    assert spoken(world.snapshot(25.0), verdict) == (
        "rank 2 is in all_reduce at train, train.py:42, where ranks 0-1 are in new_group (mesh) at train, train.py:42; "
        "2 of 3 ranks wait. This has blocked new_group (mesh) for 24.0 s; "
        "the group is created in train at train.py:42"
    )


def test_rank_that_creates_a_group_alone_is_named() -> None:
    """Three of its four members are in a collective."""
    world = FakeWorld(4)
    everybody = group_of(0, 1, 2, 3, description="default_pg")
    create(world, 0, group_of(0, 1, 2, 3, nth=1, description="mesh"), 1.0)
    for rank in (1, 2, 3):
        world.ranks[rank].enter(everybody, 1.0)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (0,))
    assert sentence(verdict, 24).startswith(
        "rank 0 is in new_group (mesh) at train, train.py:42, where ranks 1-3 are in all_reduce at train, train.py:42"
    )


def test_members_of_other_groups_do_not_count() -> None:
    """Ranks that need not create the group wait with the one that left it out: it is the odd one nevertheless."""
    world = FakeWorld(8)
    everybody = group_of(*range(8), description="default_pg")
    for rank in (0, 1, 3):
        create(world, rank, group_of(0, 1, 2, 3, description="half"), 1.0)
    for rank in (2, 4, 5, 6, 7):
        world.ranks[rank].enter(everybody, 1.0)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (2,))


def test_rank_that_is_in_the_creation_of_the_next_group() -> None:
    """The rank that left out the first of two creations is named, with the group that it creates."""
    world = FakeWorld(3)
    mesh, pair = group_of(0, 1, 2, nth=1, description="mesh"), group_of(1, 2, description="pair")
    create(world, 0, mesh, 1.0)
    create(world, 1, mesh, 1.0)
    create(world, 2, pair, 1.0)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (2,))
    assert sentence(verdict, 24).startswith(
        "rank 2 is in new_group (pair) at train, train.py:42, where ranks 0-1 are in new_group"
    )


def test_one_against_one_names_both() -> None:
    """With one against one it is unknown which is right, so both are named."""
    world = FakeWorld(2)
    create(world, 0, group_of(0, 1, nth=1, description="mesh"), 1.0)
    world.ranks[1].enter(group_of(0, 1, description="default_pg"), 1.0)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (0, 1))


def test_creations_that_are_counted_differently() -> None:
    """Rank 2 left out a group that it is not a member of: it creates all later ones under another number."""
    world = FakeWorld(3)
    for rank in range(3):
        create(world, rank, _named(THREE, "1" if rank == 2 else "2"), 1.0)
    verdict = the_verdict(world.snapshot(25.0))
    assert verdict.mismatch is not None
    assert (verdict.kind, verdict.ranks, verdict.mismatch.field) == (VerdictKind.MISMATCHED, (2,), Field.GROUP_NAME)
    assert sentence(verdict, 24).startswith("rank 2 has group name 1 where ranks 0-1 have 2 in new_group (default_pg)")


def _named(group: GroupView, name: str) -> GroupView:
    return dataclasses.replace(group, name=dataclasses.replace(group.name, name=name))


# --- threads --------------------------------------------------------------------------------------------------------

MAIN, BACKGROUND = 100, 200


def checkpoint_world() -> FakeWorld:
    """Rank 1's checkpoint thread does not arrive; rank 0's main thread joins its own, for which rank 1's waits."""
    world = FakeWorld(2)
    default, checkpoint = group_of(0, 1, description="default_pg"), group_of(0, 1, description="checkpoint", nth=1)
    world.meet(default, 0.1)
    world.ranks[0].enter(checkpoint, 1.0, "barrier", thread=BACKGROUND)
    world.ranks[1].enter(default, 2.0)
    return world


def test_waits_of_other_threads_make_no_circle() -> None:
    """The missing rank is reported as unknown, with the waits of the other threads, and no order is blamed."""
    verdict = the_verdict(checkpoint_world().snapshot(25.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.THREADS)
    assert sentence(verdict, 24).startswith(
        "barrier (sequence 1, checkpoint) has not completed after 24.0 s; which ranks are missing is unknown: "
        "other threads of the ranks that are missing wait elsewhere, rank 0 waits for rank 1 in barrier (sequence 1, "
        "checkpoint) at train, train.py:42; rank 1 waits for rank 0 in all_reduce (sequence 2, default_pg)"
    )


def test_waits_of_the_same_thread_make_one() -> None:
    """The same two operations from one thread of each rank are a circle."""
    world = FakeWorld(2)
    default, other = group_of(0, 1, description="default_pg"), group_of(0, 1, description="other", nth=1)
    world.meet(default, 0.1)
    world.ranks[0].enter(other, 1.0)
    world.ranks[1].enter(default, 2.0)
    assert the_verdict(world.snapshot(25.0)).kind is VerdictKind.CIRCULAR


def test_thread_of_backward_waits_for_its_rank() -> None:
    """Backward passes run on a thread of their own, for which the main thread waits: such a wait explains absence."""
    world = FakeWorld(3)
    pair, shards = group_of(0, 1, description="pair"), group_of(1, 2, description="shards")
    world.meet(pair, 0.1)
    world.ranks[0].enter(pair, 1.0)
    world.ranks[1].enter(shards, 1.0, thread=BACKGROUND)
    verdict = the_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks, verdict.group) == (VerdictKind.ABSENT, (2,), shards)


# --- what is expected -----------------------------------------------------------------------------------------------


def test_expectation_excuses_no_other_rank_at_the_same_place() -> None:
    """Rank 0 evaluates and has announced it; rank 2, which should be waiting too, hangs: it is named, alone."""
    world = FakeWorld(3)
    world.meet(THREE, 0.1)
    world.ranks[1].enter(THREE, 1.0, "barrier")
    world.ranks[0].expects_until_s = 1e6
    watching = Watching(world)
    watching.until(20.0)
    assert [(event.verdict.kind, event.verdict.ranks) for _, event in watching.verdicts] == [(VerdictKind.ABSENT, (2,))]


def test_expectation_does_not_hide_a_frozen_rank() -> None:
    """Rank 0 is held by a debugger, and has announced it; rank 2 is stopped, and has not."""
    world = FakeWorld(3)
    world.ranks[1].enter(THREE, 1.0, "barrier")
    world.ranks[0].expects_until_s = 1e6
    world.ranks[0].stopped = "t"
    world.ranks[2].stopped = "T"
    watching = Watching(world)
    watching.until(20.0)
    assert {(event.verdict.kind, event.verdict.ranks) for _, event in watching.verdicts} == {(VerdictKind.FROZEN, (2,))}


def test_expectation_does_not_hide_another_stall() -> None:
    """Two independent stalls, and the older one is expected: the other one is reported."""
    world = FakeWorld(4)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[2].enter(group_of(2, 3), 2.0)
    world.ranks[1].expects_until_s = 1e6
    watching = Watching(world)
    watching.until(20.0)
    assert {event.verdict.ranks for _, event in watching.verdicts} == {(3,)}
