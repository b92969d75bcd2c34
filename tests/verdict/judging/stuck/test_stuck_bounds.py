"""When no rank may be said to be stuck, although others have come out of an operation."""

from __future__ import annotations

import pytest

from otel_torchdist.tape.layout import Flag, How, RecordKind
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import VerdictKind
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
    verdict_on,
)


def test_ranks_that_may_wait_for_each_other() -> None:
    """Rings pass data on: of two ranks that have not come out, one may wait for the other. None is named."""
    assert kind_and_ranks(run_on_devices(still_in=(2, 3))) == UNNAMED


@pytest.mark.parametrize("name", ["broadcast", "reduce", "gather", "scatter", "monitored_barrier"])
def test_rooted_operations(name: str) -> None:
    """Ranks leave a rooted operation without having waited for all others: that shows nothing."""
    assert kind_and_ranks(run_on_devices(name)) == UNNAMED


def test_sends_and_receives() -> None:
    """A sender goes on before the other side has received."""
    world = FakeWorld(4)
    send = world.ranks[2].enter(PAIR, 0.1, "send", flags=Flag.POINT_TO_POINT | Flag.ON_DEVICE, peer=3, blocking=False)
    world.ranks[2].begin_on_device(send, 0.5)
    world.ranks[2].end(send, OUT_S, How.WATCHDOG)
    receive = world.ranks[3].enter(
        PAIR, 0.1, "recv", flags=Flag.POINT_TO_POINT | Flag.ON_DEVICE, peer=2, blocking=False
    )
    world.ranks[3].begin_on_device(receive, 0.5)
    verdict = the_verdict(world.snapshot(NOW_S))
    assert (verdict.kind, verdict.ranks) == UNNAMED


def test_all_to_all_behind_other_work() -> None:
    """The others may have received nothing from this rank, whose device may still be busy with what came before."""
    world = FakeWorld(4)
    for rank in (2, 3):
        enqueue(world, rank, group=PAIR)
    for rank in range(4):
        number = enqueue(world, rank, "all_to_all_single")
        if rank != 3:
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)
    assert kind_and_ranks(world) == UNNAMED


def test_ranks_that_contribute_nothing() -> None:
    """No rank waits for a rank without data, wherever its device is; a barrier has no data at all."""
    assert kind_and_ranks(run_on_devices(message_bytes=0)) == UNNAMED
    assert kind_and_ranks(run_on_devices("barrier", message_bytes=0)) == NAMED
    world = run_on_devices(still_in=(2, 3))
    go_on(world, message_bytes=0)
    assert kind_and_ranks(world) == UNNAMED


def test_later_operations_that_nobody_has_left() -> None:
    """Both ranks have enqueued more, out of which none has come: that proves nothing."""
    world = run_on_devices(still_in=(2, 3))
    for rank in range(4):
        enqueue(world, rank, begun_s=None if rank > 1 else OUT_S)
    assert kind_and_ranks(world) == UNNAMED


def test_a_rank_whose_operation_has_failed() -> None:
    """It has come out, with an exception: it is named for that."""
    world = run_on_devices()
    world.ranks[3].end(1, 5.0, How.FAILED, failure="TIMEOUT")
    assert kind_and_ranks(world) == (VerdictKind.TRANSPORT, (3,))


def test_a_later_operation_that_does_not_need_everyone() -> None:
    """Others have come out of a later broadcast: that does not show that these ranks have been through this one."""
    world = run_on_devices(still_in=(2, 3))
    go_on(world, "broadcast")
    assert kind_and_ranks(world) == UNNAMED


def test_a_short_threshold_does_not_outrun_the_watchdog() -> None:
    """However short the threshold, ends that are not known yet get the time that a watchdog may take."""
    snapshot = run_on_devices(out_s=0.6).snapshot(5.0)
    assert verdict_on(snapshot, threshold_ns=SECOND).kind is VerdictKind.TRANSPORT
    assert verdict_on(run_on_devices(out_s=0.6).snapshot(6.0), threshold_ns=SECOND).kind is VerdictKind.STUCK


def test_others_that_have_only_just_come_out() -> None:
    """A late rank has come at last: this rank was read before the others, and its end may be seen any moment."""
    assert kind_and_ranks(run_on_devices(out_s=NOW_S - 1.0)) == UNNAMED


def test_others_that_go_on() -> None:
    """Others still come out of operations of the group: this rank's device works, its ends are only seen late."""
    world = run_on_devices(still_in=(2, 3))
    go_on(world)
    for rank in range(4):
        number = enqueue(world, rank, begun_s=None if rank > 1 else 12.0)
        if rank < 2:
            world.ranks[rank].end(number, NOW_S - 1.0, How.WATCHDOG)
    assert kind_and_ranks(world) == UNNAMED


def test_others_beyond_what_this_rank_has_entered() -> None:
    """They cannot have come out of what it has not entered: it was read, or dumped, before them."""
    world = run_on_devices()
    for rank in (0, 1, 2):
        world.ranks[rank].end(enqueue(world, rank), OUT_S, How.WATCHDOG)
    assert kind_and_ranks(world) == UNNAMED


def test_a_rank_that_has_come_out_of_a_later_one() -> None:
    """Its own end of a later operation is known, so its counts are not those of one communicator in order."""
    world = run_on_devices()
    for rank in range(4):
        world.ranks[rank].end(enqueue(world, rank), OUT_S)
    assert kind_and_ranks(world) == UNNAMED


@pytest.mark.parametrize("how", [How.UNTRACKED, How.ABANDONED])
def test_ends_that_nobody_has_seen(how: How) -> None:
    """After an error of a device nothing is known of its operations: that it left them is no evidence."""
    assert kind_and_ranks(run_on_devices(how=how)) == UNNAMED


def test_some_ends_that_nobody_has_seen() -> None:
    """Of one of the others it is only assumed that it has come out: it may be what this rank waits for."""
    world = run_on_devices(still_in=(2, 3))
    world.ranks[2].end(1, OUT_S, How.UNTRACKED)
    assert kind_and_ranks(world) == UNNAMED


def test_a_later_operation_of_another_group() -> None:
    """What this rank does in another group shows nothing about its device's work in this one."""
    world = run_on_devices(still_in=(2, 3))
    go_on(world, "broadcast")
    for rank in (2, 3):
        for _ in range(2):
            enqueue(world, rank, group=PAIR)
    assert kind_and_ranks(world) == UNNAMED


def test_an_operation_of_a_group_that_is_not_known() -> None:
    """Who takes part in what else this rank has under way is not known."""
    world = run_on_devices()
    enqueue(world, 3, group=PAIR, begun_s=None)
    assert kind_and_ranks(world) == NAMED
    enqueue(world, 3, group=None, begun_s=None)
    assert kind_and_ranks(world) == UNNAMED


def test_others_that_have_gone_on_without_it() -> None:
    """On devices, a later end shows that of this operation, even one that did not need this rank."""
    world = run_on_devices()
    for rank in range(4):
        number = enqueue(world, rank, "broadcast", begun_s=None if rank == 3 else 0.7)
        if rank != 3:
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)
    assert kind_and_ranks(world) == NAMED


def test_lost_records() -> None:
    """A device's operations end in order: a later end shows this one's, whatever records of others were lost."""
    world = run_on_devices()
    world.snapshot(NOW_S)
    for rank in (0, 1, 2):
        world.ranks[rank].lose_records()
    assert kind_and_ranks(world) == NAMED


def test_a_member_without_data() -> None:
    """A rank of the group does not report: it may be what is wrong."""
    snapshot = run_on_devices().snapshot(NOW_S, only=(0, 1, 3))
    assert verdict_on(snapshot).kind is VerdictKind.UNKNOWN


def test_a_rank_without_data_elsewhere() -> None:
    """This rank has work under way with one that does not report, which may keep its host or device busy."""
    world = run_on_devices()
    wider = group_of(3, 4, description="mesh_pp")
    enqueue(world, 3, group=wider, begun_s=None)
    assert kind_and_ranks(world) == UNNAMED


def test_a_send_to_a_rank_with_data_in_a_group_with_a_rank_without() -> None:
    """Only the two ends of a send matter."""
    world = run_on_devices()
    wider = group_of(2, 3, 4, description="mesh_pp")
    world.ranks[3].enter(wider, 0.2, "send", flags=Flag.POINT_TO_POINT | Flag.ON_DEVICE, peer=2, blocking=False)
    assert kind_and_ranks(world) == NAMED


def test_a_group_that_is_not_aligned() -> None:
    """Sequences that were not counted from the group's first operation show nothing."""
    unaligned = group_of(0, 1, description="mesh_dp", aligned=False)
    world = FakeWorld(2)
    world.ranks[0].end(enqueue(world, 0, group=unaligned), OUT_S, How.WATCHDOG)
    enqueue(world, 1, group=unaligned)
    assert the_verdict(world.snapshot(NOW_S)).kind is VerdictKind.UNKNOWN


def test_a_call_site_that_usually_takes_long() -> None:
    """What is usual at the call site counts as much as the threshold."""
    world = FakeWorld(4)
    world.ranks[3].tolerance_s = 60.0
    for rank in range(4):
        number = enqueue(world, rank)
        if rank != 3:
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)
    operation_id = OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), 1)
    assert Judge(world.snapshot(NOW_S), THRESHOLD_NS).verdict_on(operation_id) is None
