"""Verdicts on operations that devices carry out: enqueued is not yet entered."""

from __future__ import annotations

import pytest

from otel_torchdist.tape.layout import Flag, How, RecordKind
from otel_torchdist.tape.records.operations import Operation
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import Verdict, VerdictKind
from otel_torchdist.verdict.roll_call import Standing
from otel_torchdist.verdict.waits import waits_of
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.calls import Channel, GroupView, OperationId
from tests.support.worlds.fake_world import START_NS, THRESHOLD_NS, FakeWorld, group_of

EVERYBODY = group_of(0, 1, 2, description="default_pg")
PAIR = group_of(0, 1, description="mesh_dp")
OTHERS = group_of(1, 2, description="mesh_tp")
NOW_S = 20.0


def enqueue(world: FakeWorld, rank: int, group: GroupView, at_s: float, begun_s: float | None = None) -> int:
    """A rank enqueues an operation on its device; the device reaches it at `begun_s`, or never."""
    number = world.ranks[rank].enter(group, at_s, flags=Flag.ON_DEVICE, blocking=False)
    if begun_s is not None:
        world.ranks[rank].begin_on_device(number, begun_s)
    return number


def judge(world: FakeWorld, group: GroupView) -> Verdict | None:
    """The verdict on a group's first operation."""
    site = OperationId(Channel(RecordKind.OPERATION, group.key), 1)
    return Judge(world.snapshot(NOW_S), THRESHOLD_NS).verdict_on(site)


def test_queued_operations_are_no_waits() -> None:
    """However long all devices are busy with other work, no rank is late."""
    world = FakeWorld(3)
    for rank in range(3):
        enqueue(world, rank, EVERYBODY, at_s=0.0)
    assert waits_of(world.snapshot(3_600.0)) == []


def test_a_wait_begins_when_the_device_does() -> None:
    """An operation's age counts from when its device reached it."""
    world = FakeWorld(3)
    enqueue(world, 0, EVERYBODY, at_s=0.0, begun_s=7.0)
    [wait] = waits_of(world.snapshot(NOW_S))
    assert wait.since_ns - START_NS == 7_000_000_000


def test_a_device_that_has_not_come_to_it() -> None:
    """Two devices are in the operation, the third has it in its queue: that one holds up the others."""
    world = FakeWorld(3)
    for rank in (0, 2):
        enqueue(world, rank, EVERYBODY, at_s=0.0, begun_s=1.0)
    enqueue(world, 1, EVERYBODY, at_s=0.0)
    verdict = judge(world, EVERYBODY)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.waiting) == (VerdictKind.DEVICE, (1,), (0, 2))
    assert verdict.roll.standings[1] is Standing.QUEUED
    assert verdict.since_ns - START_NS == 1_000_000_000
    assert sentence(verdict, 19.0).startswith(
        "rank 1 has enqueued all_reduce (sequence 1, default_pg), but its device has not reached it for 19.0 s; "
        "2 of 3 ranks wait"
    )


def test_two_devices_that_have_not_come_to_it() -> None:
    """Several such devices are named together."""
    world = FakeWorld(3)
    enqueue(world, 0, EVERYBODY, at_s=0.0, begun_s=1.0)
    for rank in (1, 2):
        enqueue(world, rank, EVERYBODY, at_s=0.0)
    verdict = judge(world, EVERYBODY)
    assert verdict is not None
    assert sentence(verdict, 19.0).startswith(
        "ranks 1-2 have enqueued all_reduce (sequence 1, default_pg), but their devices have not reached it for 19.0 s"
    )


def test_rank_that_has_not_even_enqueued_comes_first() -> None:
    """A rank that has not entered is named rather than one whose device has it in its queue."""
    world = FakeWorld(3)
    enqueue(world, 0, EVERYBODY, at_s=0.0, begun_s=1.0)
    enqueue(world, 1, EVERYBODY, at_s=0.0)
    verdict = judge(world, EVERYBODY)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))


def test_a_device_that_itself_waits_is_not_blamed() -> None:
    """Rank 1's device is in another group's operation, which rank 2 has not enqueued: rank 2 is named."""
    world = FakeWorld(3)
    enqueue(world, 0, PAIR, at_s=0.0, begun_s=1.0)
    enqueue(world, 1, OTHERS, at_s=0.0, begun_s=1.0)
    enqueue(world, 1, PAIR, at_s=0.0)
    verdict = judge(world, PAIR)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks, verdict.group) == (VerdictKind.ABSENT, (2,), OTHERS)


@pytest.mark.parametrize(("last_s", "expected"), [(1.0, VerdictKind.TRANSPORT), (19.0, None)])
def test_all_devices_are_in_it(last_s: float, expected: VerdictKind | None) -> None:
    """Only when the last device has been in it for the threshold is the operation itself stuck."""
    world = FakeWorld(3)
    for rank, begun_s in enumerate((1.0, 1.0, last_s)):
        enqueue(world, rank, EVERYBODY, at_s=0.0, begun_s=begun_s)
    verdict = judge(world, EVERYBODY)
    assert (verdict.kind if verdict is not None else None) is expected


def test_operations_that_are_not_queried_on_the_device() -> None:
    """For such an operation the tape shows that it began when it was entered: inside the call it waits since then."""
    untracked = Operation(
        number=1, kind=RecordKind.OPERATION, entered_ns=5, step=0, sequence=1, message_bytes=0, group=1, signature=1,
        call_site=0, label=0, peer=-1, tag=0, thread=1, flags=Flag.ON_DEVICE, started_ns=5, started_how=How.UNTRACKED,
    )  # fmt: skip
    assert untracked.waiting_since_ns == 5
    assert untracked.is_blocking
    assert not untracked.is_queued
