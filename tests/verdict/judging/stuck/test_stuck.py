"""Verdicts on ranks that have not come out of a collective although others have."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.processes.state import HEARTBEAT_LATE_NS
from otel_torchdist.tape.layout import Flag, How, RecordKind
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import VerdictKind, locate
from otel_torchdist.verdict.past.last_moment import LastMoment
from otel_torchdist.verdict.past.post_mortem import judge, roots_of, stalled_verdict
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.calls import Channel, OperationId
from tests.support.worlds.fake_world import SECOND, THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import the_verdict
from tests.verdict.judging.stuck.stuck_worlds import (
    EVERYBODY,
    NAMED,
    NOW_S,
    OUT_S,
    PAIR,
    UNNAMED,
    enqueue,
    go_on,
    kind_and_ranks,
    run_on_devices,
    run_on_hosts,
    verdict_on,
)


def test_the_only_rank_that_has_not_come_out() -> None:
    """All others have left the operation: nothing but this rank's own side can keep it in there."""
    snapshot = run_on_devices().snapshot(NOW_S)
    verdict = locate(snapshot, verdict_on(snapshot))
    assert (verdict.kind, verdict.ranks) == NAMED
    assert sentence(verdict, 19.5).startswith(
        "rank 3 has not come out of all_reduce (sequence 1, default_pg) for 19.5 s, although others have: its device, "
        "or its connection to them, is stuck or broken; it is in all_reduce"
    )


@pytest.mark.parametrize("name", ["all_gather_into_tensor", "reduce_scatter_tensor", "barrier", "all_to_all_single"])
def test_operations_that_need_everyone(name: str) -> None:
    """The rule holds for each kind of operation in which every result depends on every rank."""
    assert kind_and_ranks(run_on_devices(name)) == NAMED


def test_two_ranks_whose_devices_have_done_more_than_they_show() -> None:
    """Others have come out of a later collective, which both have taken part in: both are named."""
    world = run_on_devices(still_in=(2, 3))
    go_on(world)
    snapshot = world.snapshot(NOW_S)
    verdict = locate(snapshot, verdict_on(snapshot))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.STUCK, (2, 3))
    assert sentence(verdict, 19.5).startswith(
        "ranks 2-3 have not come out of all_reduce (sequence 1, default_pg) for 19.5 s, although others have: their "
        "devices, or their connections to them, are stuck or broken; rank 2 is in all_reduce"
    )


def test_rooted_operation_before_one_that_needs_everyone() -> None:
    """A communicator runs its operations in order: a rank that took part in a later one has been through this one."""
    world = run_on_devices("broadcast", still_in=(2, 3))
    go_on(world)
    assert kind_and_ranks(world) == (VerdictKind.STUCK, (2, 3))


def test_the_rank_for_which_others_wait_elsewhere() -> None:
    """The others wait for it in a later operation: the search ends where it is stuck."""
    world = run_on_devices()
    for rank in (0, 1, 2):
        enqueue(world, rank, begun_s=1.5)
    verdict = the_verdict(world.snapshot(NOW_S))
    assert (verdict.kind, verdict.ranks, verdict.operation_id.sequence) == (*NAMED, 1)


def test_two_groups_with_a_broken_device_each() -> None:
    """Every rank that is stuck is named, and a verdict that names no more ranks is not repeated."""
    lower, upper = group_of(0, 1, description="lower"), group_of(2, 3, description="upper")
    world = FakeWorld(4)
    for group, out in ((lower, 0), (upper, 2)):
        for rank in group.members:
            number = enqueue(world, rank, group=group)
            if rank == out:
                world.ranks[rank].end(number, OUT_S, How.WATCHDOG)
    moment = LastMoment(world.snapshot(NOW_S), True, {})
    rules = StallRules(THRESHOLD_NS)
    assert [(root.kind, root.ranks) for root in roots_of(moment, rules)] == [
        (VerdictKind.STUCK, (1,)),
        (VerdictKind.STUCK, (3,)),
    ]
    for rank in range(4):
        number = enqueue(world, rank, begun_s=0.7)
        if rank in (0, 2):
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)
    for rank in range(4):
        number = enqueue(world, rank, begun_s=None)
        if rank in (0, 2):
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)
    moment = LastMoment(world.snapshot(NOW_S), True, {})
    [root] = roots_of(moment, rules)
    assert (root.kind, root.ranks, root.places.keys()) == (VerdictKind.STUCK, (1, 3), {0, 1, 2, 3})
    live = judge(moment, rules)
    assert live is not None
    assert live.agrees_with(root)


def test_a_world_without_a_stall_has_no_root() -> None:
    """Nothing waits: there is no verdict at all."""
    assert roots_of(LastMoment(run_on_devices(still_in=()).snapshot(NOW_S), True, {}), StallRules(THRESHOLD_NS)) == []


def test_a_frozen_rank() -> None:
    """A process that does not run cannot see that it has come out."""
    world = run_on_devices()
    world.ranks[3].stopped = "T"
    assert kind_and_ranks(world) == (VerdictKind.FROZEN, (3,))


def test_an_absent_rank_elsewhere() -> None:
    """A rank that is missing in another operation may be why this one's host does not look: it is named instead."""
    world = run_on_devices()
    pair = group_of(0, 1, description="mesh_dp")
    enqueue(world, 0, group=pair)
    verdict = stalled_verdict(world.snapshot(NOW_S), StallRules(THRESHOLD_NS))
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))


def test_a_rank_that_blocks_on_its_host() -> None:
    """With gloo, a thread waits in the call, and all others have come out of it."""
    snapshot = run_on_hosts({3: True}).snapshot(NOW_S)
    verdict = locate(snapshot, verdict_on(snapshot))
    assert (verdict.kind, verdict.ranks) == NAMED
    assert "although others have: its process, or its connection to them, is stuck or broken" in sentence(verdict, 19.9)


def test_a_rank_that_has_not_looked() -> None:
    """With gloo, an asynchronous operation may have ended long ago: it was not checked since."""
    assert kind_and_ranks(run_on_hosts({3: False})) == UNNAMED


def test_hosts_do_not_work_in_order() -> None:
    """Backends like gloo run several operations of a group at a time: a later one shows nothing about this one."""
    world = run_on_hosts({2: True, 3: True})
    for rank in range(4):
        number = world.ranks[rank].enter(EVERYBODY, 0.2)
        if rank < 2:
            world.ranks[rank].end(number, OUT_S)
    assert kind_and_ranks(world) == UNNAMED


def test_hosts_of_which_more_is_known() -> None:
    """The others were seen to come out of a later operation: of this one's end there may be no record."""
    world = run_on_hosts({3: False})
    world.ranks[3].wait_for(1, 0.3)
    assert kind_and_ranks(world) == NAMED
    for rank in range(4):
        number = world.ranks[rank].enter(EVERYBODY, 0.2, blocking=False)
        if rank != 3:
            world.ranks[rank].end(number, OUT_S)
    assert kind_and_ranks(world) == UNNAMED


def test_a_wait_that_has_only_just_begun() -> None:
    """Where only a wait shows an end, the rank has looked for a moment only, however old the operation is."""
    world = run_on_hosts({3: False})
    number = world.ranks[3].enter(PAIR, 0.2, flags=Flag.END_BY_WAIT, blocking=False)
    world.ranks[2].end(world.ranks[2].enter(PAIR, 0.2), OUT_S)
    world.ranks[3].wait_for(number, NOW_S - 1.0)
    operation_id = OperationId(Channel(RecordKind.OPERATION, PAIR.key), 1)
    for now_s, expected in ((NOW_S, VerdictKind.TRANSPORT), (NOW_S + 10.0, VerdictKind.STUCK)):
        verdict = Judge(world.snapshot(now_s), THRESHOLD_NS).verdict_on(operation_id)
        assert verdict is not None
        assert verdict.kind is expected


def test_native_code_that_holds_the_gil() -> None:
    """A rank whose Python threads do not run cannot see ends; it is named only if others have long waited for it."""
    world = run_on_devices()
    world.ranks[3].heartbeat_age_s = HEARTBEAT_LATE_NS / SECOND + 1
    assert kind_and_ranks(world) == UNNAMED
    for rank in (0, 1, 2):
        enqueue(world, rank, begun_s=12.0)
    assert kind_and_ranks(world) == UNNAMED
    assert kind_and_ranks(world, now_s=23.0) == NAMED
    enqueue(world, 3, begun_s=None)
    assert kind_and_ranks(world, now_s=23.0) == UNNAMED


def test_a_channel_of_which_only_the_operation_is_known() -> None:
    """An agent that was restarted may find an open operation without the records around it."""
    snapshot = run_on_devices().snapshot(NOW_S)
    views = {**snapshot.ranks, 3: dataclasses.replace(snapshot.ranks[3], progress={})}
    assert verdict_on(dataclasses.replace(snapshot, ranks=views)).kind is VerdictKind.TRANSPORT
