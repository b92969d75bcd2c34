"""Verdicts on operations that devices carry out: enqueued is not yet entered."""

from __future__ import annotations

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.operations import Operation
from otel_torchdist.verdict.rules import waits_of
from tests.support.worlds.fake_world import START_NS, FakeWorld, group_of

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


def test_operations_that_are_not_queried_on_the_device() -> None:
    """For such an operation the tape shows that it began when it was entered: inside the call it waits since then."""
    untracked = Operation(
        number=1, kind=RecordKind.OPERATION, entered_ns=5, step=0, sequence=1, message_bytes=0, group=1, signature=1,
        call_site=0, label=0, peer=-1, tag=0, thread=1, flags=Flag.ON_DEVICE, started_ns=5, started_how=How.UNTRACKED,
    )  # fmt: skip
    assert untracked.waiting_since_ns == 5
    assert untracked.is_blocking
    assert not untracked.is_queued
