"""The times on the tape, compared with torch's own events."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from otel_torchdist.capture.core.cuda.driver import cuda_drivers
from otel_torchdist.capture.core.cuda.queues import FIRST_TIMED, is_timed
from otel_torchdist.model.kinds import How
from tests.gpu.world import DEVICE, LARGE, TorchClock, World, mark

CLOCK_ERROR_NS = 2_000_000
MS = 1_000_000


def large_tensors() -> tuple[torch.Tensor, torch.Tensor]:
    """Input and output of an all_gather that copies for a measurable time."""
    return torch.zeros(LARGE, dtype=torch.uint8, device=DEVICE), torch.empty(LARGE, dtype=torch.uint8, device=DEVICE)


def test_the_driver_on_a_device(world: World) -> None:
    """The clock relies on this: events of our own stream are timed against others, in both directions."""
    calling, watching = cuda_drivers()
    stream = watching.create_stream(0)
    early, late = calling.create_event(0), watching.create_event(0)
    watching.record(early, 0, stream)
    time.sleep(0.05)
    calling.record(late, 0, calling.current_stream(0))
    world.until(lambda: watching.is_done(early) and watching.is_done(late))
    assert watching.elapsed_ms(early, late) == pytest.approx(50, abs=20)
    assert watching.elapsed_ms(late, early) == pytest.approx(-watching.elapsed_ms(early, late), abs=0.001)
    for event in (early, late):
        watching.destroy_event(event)


def test_a_synchronous_operation(world: World) -> None:
    """Enqueued, begun and ended as torch's events show; the device time is right to some microseconds."""
    source, target = large_tensors()
    clock = TorchClock()
    events: list[torch.cuda.Event] = []

    def gather() -> None:
        world.sleep(0.2)
        events.append(mark())
        dist.all_gather_into_tensor(target, source)
        events.append(mark())

    [operation] = world.record(gather)
    before, after = events
    assert (operation.started_how, operation.how) == (How.EVENT, How.EVENT)
    assert operation.started_ns is not None
    assert operation.completed_ns is not None
    assert operation.returned_ns is not None
    assert operation.returned_ns < operation.started_ns
    assert operation.started_ns == pytest.approx(clock.date(before), abs=CLOCK_ERROR_NS)
    assert operation.completed_ns == pytest.approx(clock.date(after), abs=CLOCK_ERROR_NS)
    lasted_ns = before.elapsed_time(after) * MS
    assert operation.completed_ns - operation.started_ns == pytest.approx(lasted_ns, rel=0.1, abs=0.05 * MS)


def test_an_asynchronous_operation(world: World) -> None:
    """Its begin is exact too, and its end is as late as the watchdog."""
    source, target = large_tensors()
    clock = TorchClock()
    events: list[torch.cuda.Event] = []

    def gather() -> None:
        world.sleep(0.2)
        events.append(mark())
        work = dist.all_gather_into_tensor(target, source, async_op=True)
        assert work is not None
        work.wait()
        events.append(mark())

    [operation] = world.record(gather)
    before, after = (clock.date(event) for event in events)
    assert (operation.started_how, operation.how) == (How.EVENT, How.WATCHDOG)
    assert operation.started_ns == pytest.approx(before, abs=CLOCK_ERROR_NS)
    assert operation.completed_ns is not None
    assert after - CLOCK_ERROR_NS <= operation.completed_ns <= after + 500 * MS


def test_a_functional_collective(world: World) -> None:
    """The stream that waits for the operation gives its exact end."""
    source, _ = large_tensors()
    group = dist.group.WORLD
    assert group is not None
    clock = TorchClock()
    events: list[torch.cuda.Event] = []

    def gather() -> None:
        world.sleep(0.1)
        result = functional.all_gather_tensor(source, 0, group)
        functional.wait_tensor(result)
        events.append(mark())

    [operation] = world.record(gather)
    assert operation.how is How.EVENT
    assert operation.completed_ns == pytest.approx(clock.date(events[0]), abs=CLOCK_ERROR_NS)


def test_waits_beyond_the_first(world: World) -> None:
    """Beyond the first operations, all are counted, and durations are known only of timed ones, exactly."""
    source, _ = large_tensors()
    group = dist.group.WORLD
    assert group is not None
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def gather() -> None:
        for _ in range(160):
            world.sleep(0.002)  # the host is ahead, so each wait blocks
            before = mark()
            functional.wait_tensor(functional.all_gather_tensor(source, 0, group))
            events.append((before, mark()))

    operations = world.record(gather)
    assert len(operations) == len(events)
    assert [one.sequence - operations[0].sequence for one in operations] == [*range(len(operations))]
    later = [(one, *pair) for one, pair in zip(operations, events, strict=True) if one.sequence > FIRST_TIMED + 1]
    known = [(one, before, after) for one, before, after in later if one.is_timed]
    assert known
    for one, before, after in known:
        assert is_timed(one.sequence)
        assert one.completed_ns is not None
        assert one.started_ns is not None
        assert one.completed_ns - one.started_ns == pytest.approx(
            before.elapsed_time(after) * MS, rel=0.3, abs=0.1 * MS
        )


def test_a_long_queue(world: World) -> None:
    """Three hundred operations behind a slow kernel: all are followed, and begin and end in their order."""
    tensor = torch.ones(8, device=DEVICE)

    def enqueue() -> None:
        world.sleep(1.0)
        for _ in range(300):
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)

    operations = world.record(enqueue)
    assert {operation.how for operation in operations} == {How.EVENT}
    begins = [operation.started_ns or 0 for operation in operations]
    assert begins == sorted(begins)
    assert begins[0] - operations[0].entered_ns > 500 * MS


def test_streams_of_the_user(world: World) -> None:
    """Operations on another stream than the default one are timed on that stream."""
    tensor = torch.ones(8, device=DEVICE)
    stream = torch.cuda.Stream()

    def reduce() -> None:
        with torch.cuda.stream(stream):
            world.sleep(0.2)
            dist.all_reduce(tensor)

    [operation] = world.record(reduce)
    assert operation.started_ns is not None
    assert operation.started_ns - operation.entered_ns > 100 * MS
