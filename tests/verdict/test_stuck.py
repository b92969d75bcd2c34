"""Verdicts on ranks that have not come out of a collective although others have, and when none may be given."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import pytest

from otel_torchdist.processes.state import HEARTBEAT_LATE_NS
from otel_torchdist.tape.layout import Flag, How, RecordKind
from otel_torchdist.verdict.judge import Judge
from otel_torchdist.verdict.last_moment import LastMoment
from otel_torchdist.verdict.model import Verdict, VerdictKind, locate
from otel_torchdist.verdict.post_mortem import judge, roots_of, stalled_verdict
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.model import Channel, GroupView, OperationId, WorldSnapshot
from tests.support.fake_world import SECOND, THRESHOLD_NS, FakeWorld, group_of
from tests.support.judging import the_verdict

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")
PAIR = group_of(2, 3, description="mesh_tp")
NOW_S = 20.0
OUT_S = 1.0


def enqueue(
    world: FakeWorld,
    rank: int,
    name: str = "all_reduce",
    group: GroupView = EVERYBODY,
    begun_s: float | None = 0.5,
    message_bytes: int = 64,
) -> int:
    """A rank enqueues an operation on its device, which reaches it at `begun_s`, or never."""
    fake = world.ranks[rank]
    number = fake.enter(group, 0.1, name, flags=Flag.ON_DEVICE, blocking=False, message_bytes=message_bytes)
    if begun_s is not None:
        fake.begin_on_device(number, begun_s)
    return number


def run_on_devices(
    name: str = "all_reduce",
    still_in: Iterable[int] = (3,),
    out_s: float = OUT_S,
    message_bytes: int = 64,
    how: How = How.WATCHDOG,
) -> FakeWorld:
    """Four ranks enqueue an operation; all come out of it but those in `still_in`."""
    world = FakeWorld(4)
    for rank in range(4):
        number = enqueue(world, rank, name, message_bytes=message_bytes)
        if rank not in still_in:
            world.ranks[rank].end(number, out_s, how)
    return world


def run_on_hosts(still_in: Mapping[int, bool]) -> FakeWorld:
    """The same on the ranks' hosts, as with gloo; the ranks in `still_in` block in the call, or called and went on."""
    world = FakeWorld(4)
    for rank in range(4):
        number = world.ranks[rank].enter(EVERYBODY, 0.1, blocking=still_in.get(rank, True))
        if rank not in still_in:
            world.ranks[rank].end(number, OUT_S)
    return world


def verdict_on(world: WorldSnapshot, sequence: int = 1, threshold_ns: int = THRESHOLD_NS) -> Verdict:
    """The verdict on one operation of the group of all ranks."""
    verdict = Judge(world, threshold_ns).verdict_on(OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), sequence))
    assert verdict is not None
    return verdict


def kind_and_ranks(world: FakeWorld, now_s: float = NOW_S) -> tuple[VerdictKind, tuple[int, ...]]:
    """What the verdict on the first operation is, and whom it names."""
    verdict = verdict_on(world.snapshot(now_s))
    return verdict.kind, verdict.ranks


UNNAMED = (VerdictKind.TRANSPORT, ())
NAMED = (VerdictKind.STUCK, (3,))


# --- who is named --------------------------------------------------


def test_the_only_rank_that_has_not_come_out() -> None:
    """All others have left the operation: nothing but this rank's own side can keep it in there."""
    snapshot = run_on_devices().snapshot(NOW_S)
    verdict = locate(snapshot, verdict_on(snapshot))
    assert (verdict.kind, verdict.ranks) == NAMED
    assert sentence(verdict, 19.5).startswith(
        "rank 3 has not come out of all_reduce (sequence 1, default_pg) for 19.5 s, although others have: its device, "
        "or its connection to them, is stuck or broken; 1 of 4 ranks waits; ranks 0-2 have left it; it is in all_reduce"
    )


@pytest.mark.parametrize("name", ["all_gather_into_tensor", "reduce_scatter_tensor", "barrier", "all_to_all_single"])
def test_operations_that_need_everyone(name: str) -> None:
    """The rule holds for each kind of operation in which every result depends on every rank."""
    assert kind_and_ranks(run_on_devices(name)) == NAMED


def go_on(world: FakeWorld, name: str = "all_reduce", message_bytes: int = 64) -> None:
    """All ranks enqueue another operation; ranks 0 and 1 come out of it."""
    for rank in range(4):
        number = enqueue(world, rank, name, begun_s=None if rank > 1 else 0.6, message_bytes=message_bytes)
        if rank < 2:
            world.ranks[rank].end(number, OUT_S, How.WATCHDOG)


def test_two_ranks_whose_devices_have_done_more_than_they_show() -> None:
    """Others have come out of a later collective, which both have taken part in: both are named."""
    world = run_on_devices(still_in=(2, 3))
    go_on(world)
    snapshot = world.snapshot(NOW_S)
    verdict = locate(snapshot, verdict_on(snapshot))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.STUCK, (2, 3))
    assert sentence(verdict, 19.5).startswith(
        "ranks 2-3 have not come out of all_reduce (sequence 1, default_pg) for 19.5 s, although others have: their "
        "devices, or their connections to them, are stuck or broken; 2 of 4 ranks wait; ranks 0-1 have left it"
    )


def test_rooted_operation_before_one_that_needs_everyone() -> None:
    """A communicator runs its operations in order: whoever took part in a later one has been through this one."""
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


# --- who is not named ----------------------------------------------


def test_ranks_that_may_wait_for_each_other() -> None:
    """Rings pass data on: of two ranks that have not come out, one may wait for the other. Nobody is named."""
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
    """Nobody waits for a rank without data, wherever its device is; a barrier has no data at all."""
    assert kind_and_ranks(run_on_devices(message_bytes=0)) == UNNAMED
    assert kind_and_ranks(run_on_devices("barrier", message_bytes=0)) == NAMED
    world = run_on_devices(still_in=(2, 3))
    go_on(world, message_bytes=0)
    assert kind_and_ranks(world) == UNNAMED


def test_later_operations_that_nobody_has_left() -> None:
    """Both ranks have enqueued more, out of which nobody has come: that proves nothing."""
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
    snapshot = run_on_devices(out_s=0.6).snapshot(2.5)
    assert verdict_on(snapshot, threshold_ns=SECOND).kind is VerdictKind.TRANSPORT
    assert verdict_on(run_on_devices(out_s=0.6).snapshot(4.0), threshold_ns=SECOND).kind is VerdictKind.STUCK


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
    number = enqueue(world, 3, group=PAIR, begun_s=None)
    assert kind_and_ranks(world) == NAMED
    world.ranks[3].open[number] = dataclasses.replace(world.ranks[3].open[number], group=None)
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
    for rank in (0, 1, 2):
        world.ranks[rank].losses += 1
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


# --- stronger evidence ---------------------------------------------


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


# --- hosts ---------------------------------------------------------


def test_a_rank_that_blocks_on_its_host() -> None:
    """With gloo, a thread waits in the call, and all others have come out of it."""
    snapshot = run_on_hosts({3: True}).snapshot(NOW_S)
    verdict = locate(snapshot, verdict_on(snapshot))
    assert (verdict.kind, verdict.ranks) == NAMED
    assert "although others have: its process, or its connection to them, is stuck or broken" in sentence(verdict, 19.9)


def test_a_rank_that_has_not_looked() -> None:
    """With gloo, an asynchronous operation may have ended long ago: nobody has looked since."""
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
    """A rank whose Python threads do not run cannot see ends; it is named only if others wait for it elsewhere."""
    world = run_on_devices()
    world.ranks[3].heartbeat_age_s = HEARTBEAT_LATE_NS / SECOND + 1
    assert kind_and_ranks(world) == UNNAMED
    for rank in (0, 1, 2):
        enqueue(world, rank, begun_s=1.5)
    verdict = verdict_on(world.snapshot(NOW_S), sequence=2)
    assert (verdict.kind, verdict.ranks, verdict.operation_id.sequence) == (*NAMED, 1)


def test_a_source_without_heartbeats() -> None:
    """Dumps of the flight recorder know of none: watchdogs have looked without one."""
    snapshot = run_on_devices().snapshot(NOW_S)
    views = {rank: dataclasses.replace(view, heartbeat_ns=0) for rank, view in snapshot.ranks.items()}
    verdict = verdict_on(dataclasses.replace(snapshot, ranks=views))
    assert (verdict.kind, verdict.ranks) == NAMED
