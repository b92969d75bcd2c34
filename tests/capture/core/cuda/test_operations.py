"""Operations on a device: the recorded times of their enqueueing, start and end, and the sources of these times."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from otel_torchdist.capture.core.cuda.queues import QueuedOperation
from otel_torchdist.model.kinds import Flag, How
from tests.support.devices.device_rank import (
    MAIN_STREAM,
    NCCL_STREAM,
    OTHER_STREAM,
    DeviceRank,
    Issued,
    NcclWork,
    device_rank,
)
from tests.support.devices.simulated_device import MS

CLOCK_ERROR_NS = 2 * MS
"""The bound of `DeviceClock`, with room for a loaded machine: half of its widest bracket, and the clocks' drift."""
DURATION_ERROR_NS = 20_000
OUR_THREAD = "otel-torchdist-cuda"


@pytest.fixture
def rank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DeviceRank]:
    """A rank with a device; a parameter sets the number of its events."""
    with device_rank(tmp_path, max_events=getattr(request, "param", 64)) as one:
        yield one


def kernel_times(issued: Issued) -> tuple[int, int]:
    """Return the device's real start and end of a finished operation's kernel."""
    assert issued.kernel.end_ns is not None
    assert issued.kernel.lasts_ns is not None
    return issued.kernel.end_ns - issued.kernel.lasts_ns, issued.kernel.end_ns


@pytest.mark.parametrize("rank", [500], indirect=True)
def test_a_queue_behind_a_slow_kernel(rank: DeviceRank) -> None:
    """A queue behind a slow kernel costs one query per poll, and is no evidence of a stall.

    Each operation starts when its predecessor ends, at the device's time.
    """
    slow = rank.device.launch(MAIN_STREAM, None)
    queue = [rank.run(50_000) for _ in range(200)]
    asked = rank.device.asked
    rank.until(lambda: rank.device.asked > asked + 10)
    operations = rank.read()
    assert all(operation.is_queued and operation.waiting_since_ns is None for operation in operations.values())
    # The clock makes a few queries for its anchor; querying 200 operations one by one would be 200 per poll.
    assert rank.device.asked < asked + 100
    rank.device.release(slow)
    ended = rank.until_ended(*queue)
    for before, after in itertools.pairwise(ended):
        assert before.completed_ns is not None
        assert after.started_ns is not None
        assert after.started_ns >= before.completed_ns - DURATION_ERROR_NS
    for issued, operation in zip(queue, ended, strict=True):
        began_ns, ended_ns = kernel_times(issued)
        assert (operation.started_how, operation.how) == (How.EVENT, How.EVENT)
        assert operation.started_ns == pytest.approx(began_ns, abs=CLOCK_ERROR_NS)
        assert operation.completed_ns == pytest.approx(ended_ns, abs=CLOCK_ERROR_NS)
        assert operation.flags & ~Flag.REDUCE_OP_UNREAD == Flag.ON_DEVICE
    assert rank.device.queried_by == {OUR_THREAD}, "the user's threads record events and never query one"


def test_an_operation_that_waits_for_its_peers(rank: DeviceRank) -> None:
    """A started operation waits for its peers. The operation behind it in the queue does not."""
    rank.until_ended(rank.run(1 * MS))
    stuck, behind = rank.run(None), rank.run(1 * MS)
    rank.until(lambda: rank[stuck].started_ns)
    assert rank[stuck].waiting_since_ns == rank[stuck].started_ns
    assert not rank[stuck].is_blocking
    assert rank[behind].is_queued
    rank.device.release(stuck.kernel)
    rank.until_ended(stuck, behind)


def test_a_call_that_hangs_on_the_host(rank: DeviceRank) -> None:
    """A group's first operation that hangs in the call, where ranks connect, has started, so it waits for peers."""
    call = rank.enter()
    rank.until(lambda: rank.read()[call.number].started_ns)
    operation = rank.operations[call.number]
    assert operation.returned_ns is None
    assert operation.is_blocking
    assert operation.waiting_since_ns == operation.started_ns


def test_asynchronous_operations_end_with_the_watchdog(rank: DeviceRank) -> None:
    """The start of an asynchronous operation is exact, its end as late as the watchdog. The record states both."""
    ahead = rank.device.launch(MAIN_STREAM, None)
    issued = rank.start(30 * MS)
    rank.device.release(ahead)
    [operation] = rank.until_ended(issued, watchdog=True)
    began_ns, ended_ns = kernel_times(issued)
    assert (operation.started_how, operation.how) == (How.EVENT, How.WATCHDOG)
    assert operation.started_ns == pytest.approx(began_ns, abs=CLOCK_ERROR_NS)
    assert operation.completed_ns is not None
    assert operation.completed_ns >= ended_ns
    assert Flag.ASYNC in operation.flags


def test_the_next_of_a_group_begins_when_the_last_has_ended(rank: DeviceRank) -> None:
    """A group's operations run one by one: the second has not started while the first runs."""
    first, second = rank.start(None), rank.start(1 * MS)
    rank.until(lambda: rank[first].started_ns)
    assert rank[second].is_queued
    rank.device.release(first.kernel)
    before, after = rank.until_ended(first, second, watchdog=True)
    assert after.started_ns == before.completed_ns
    assert after.started_how is How.WATCHDOG, "as coarse as the end on which it rests"


def test_peers_have_streams_of_their_own(rank: DeviceRank) -> None:
    """A send that waits for one peer does not delay messages from another peer."""
    stuck = rank.start(None, "send", peer=0)
    other = rank.start(1 * MS, "recv", peer=1, stream=OTHER_STREAM)
    rank.until_ended(other, watchdog=True)
    assert rank[stuck].started_ns is not None
    assert rank[stuck].is_open


def test_a_wait_that_blocks_shows_the_end(rank: DeviceRank) -> None:
    """A wait that blocks a stream gives the end as exactly as an event does."""
    issued = rank.start(None)
    began_ns = rank.device.now()
    rank.wait_on_stream(issued)
    took_ns = rank.device.now() - began_ns
    time.sleep(0.01 + 3 * took_ns / 1e9)  # the stream blocks for longer than the host took, however busy that is
    rank.device.release(issued.kernel)
    [operation] = rank.until_ended(issued, watchdog=True)
    assert operation.how is How.EVENT
    assert operation.completed_ns == pytest.approx(issued.kernel.end_ns, abs=CLOCK_ERROR_NS)
    assert not rank.cuda.written


def test_a_wait_that_does_not_block_is_a_bound(rank: DeviceRank) -> None:
    """A wait that does not block is only an upper bound on the end, and is marked so."""
    issued = rank.start(1 * MS)
    rank.until(lambda: rank.device.is_over(issued.kernel))
    rank.wait_on_stream(issued, takes_s=0.01)
    waited_ns = rank.device.now()
    [operation] = rank.until_ended(issued, watchdog=True)
    assert operation.how is How.WATCHDOG
    assert operation.completed_ns is not None
    assert operation.completed_ns <= waited_ns + CLOCK_ERROR_NS


@pytest.mark.parametrize(("value", "failure"), [(1, "TIMEOUT"), (2, "COMM_ERROR"), (100, "UNKNOWN")])
def test_operations_that_fail_on_the_device(rank: DeviceRank, value: int, failure: str) -> None:
    """A failure that the watchdog reports is recorded, and does not prove that the ranks have met."""
    issued = rank.start(1 * MS)
    rank.until(lambda: rank.device.is_over(issued.kernel))
    rank.watchdog(value)
    [operation] = rank.until_ended(issued)
    assert operation.how is How.FAILED
    assert rank.reader.names.text(operation.failure) == failure
    assert not rank.group.synchronized


def test_a_future_that_raises(rank: DeviceRank) -> None:
    """If a future raises, the exception's type is recorded as the failure."""
    issued = rank.start(1 * MS)
    result: Any = issued.result
    result.set_exception(ConnectionError("gone"))
    [operation] = rank.until_ended(issued)
    assert (operation.how, rank.reader.names.text(operation.failure)) == (How.FAILED, "ConnectionError")


def test_a_later_operation_of_the_group_shows_the_end(rank: DeviceRank) -> None:
    """The end of a group's later operation ends the earlier ones.

    The watchdog is not needed for that, nor believed if it fails.
    """
    first, second = rank.start(20 * MS), rank.start(1 * MS)
    rank.device.wait_for(MAIN_STREAM, second.kernel)
    before, after, last = rank.until_ended(first, second, rank.run(1 * MS))
    assert last.how is How.EVENT
    assert before.completed_ns is not None
    assert last.completed_ns is not None
    for operation, issued in ((before, first), (after, second)):
        assert operation.how is How.WATCHDOG, "as coarse as that"
        assert operation.completed_ns is not None
        assert kernel_times(issued)[1] - CLOCK_ERROR_NS <= operation.completed_ns <= last.completed_ns
    for failed in (first, second):
        assert failed.result is not None
        failed.result.set_result(2)
    rank.until_ended(rank.run(1 * MS))
    assert [rank[one].how for one in (first, second)] == [How.WATCHDOG] * 2


def test_messages_and_other_groups_show_no_end(rank: DeviceRank) -> None:
    """Later messages, operations of other groups, and of groups of one rank do not end earlier operations."""
    rank.use_group(dist.ProcessGroup(0, 1), (0,))
    alone = rank.start(None)
    rank.until_ended(rank.run(1 * MS))
    rank.use_group(dist.ProcessGroup(0, 2), (0, 1))
    rank.group.backend_on.names["cuda"] = "nccl"
    message = rank.start(None, "send", peer=0, stream=OTHER_STREAM)
    rank.until_ended(rank.run(1 * MS), rank.run(1 * MS))
    assert rank[alone].is_open
    assert rank[message].is_open


def test_ranks_have_met_when_a_collective_has_ended(rank: DeviceRank) -> None:
    """A collective that ends on the device proves that every member entered it."""
    issued = rank.run(None)
    assert not rank.group.synchronized
    rank.device.release(issued.kernel)
    rank.until_ended(issued)
    assert rank.group.synchronized


def test_nothing_is_held_beyond_the_call(rank: DeviceRank) -> None:
    """The tensors and Work of a running operation are freed when the user releases them."""
    issued = rank.start(None)
    watched = [weakref.ref(issued.tensor), weakref.ref(issued.work)]
    issued.work = issued.tensor = None
    gc.collect()
    assert [reference() for reference in watched] == [None, None]
    assert rank[issued].is_open


def test_nothing_is_left_for_the_garbage_collector(rank: DeviceRank) -> None:
    """The state of an operation is freed at its end without a garbage collection."""
    tape = rank.recorder.tape
    gc.disable()
    try:
        rank.until_ended(rank.run(50_000), rank.start(50_000), watchdog=True)
        rank.until(
            lambda: not [one for one in gc.get_objects() if type(one) is QueuedOperation and one.call.tape is tape]
        )
    finally:
        gc.enable()


def test_several_streams_and_devices(rank: DeviceRank) -> None:
    """A stuck stream delays neither other streams nor other devices."""
    stuck = rank.run(None)
    rank.until_ended(rank.run(1 * MS, stream=OTHER_STREAM), rank.run(1 * MS, stream=NCCL_STREAM, device=1))
    assert rank[stuck].is_open
    assert {event.device for event in rank.device.events.values()} == {0, 1}


@pytest.mark.parametrize("rank", [400], indirect=True)
def test_several_threads(rank: DeviceRank) -> None:
    """Threads that enqueue at the same time share the event pool, and each operation has its own times."""
    queues: dict[int, list[Issued]] = {stream: [] for stream in range(11, 15)}
    ahead = [rank.device.launch(stream, None) for stream in queues]  # a thread may lose its core before its event

    def enqueue(stream: int) -> None:
        for _ in range(40):
            queues[stream].append(rank.run(3 * MS, stream=stream))

    threads = [threading.Thread(target=enqueue, args=(stream,)) for stream in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kernel in ahead:
        rank.device.release(kernel)
    for queue in queues.values():
        ended = rank.until_ended(*queue)
        assert {operation.how for operation in ended} == {How.EVENT}
        for issued, operation in zip(queue, ended, strict=True):
            assert operation.completed_ns == pytest.approx(kernel_times(issued)[1], abs=CLOCK_ERROR_NS)
    assert len(rank.device.events) <= 2 * 160 + 2


def test_coalesced_operations(rank: DeviceRank) -> None:
    """Coalesced operations start and end together, between the same two events."""
    rank.device.use_stream(MAIN_STREAM)
    rank.group.coalescing = calls = []
    for _ in range(3):
        rank.leave(rank.enter())
    assert len(calls) == 3
    rank.until(lambda: rank.read()[calls[0].number].started_ns)  # before they are known to belong together
    kernel = rank.device.launch(MAIN_STREAM, None)
    rank.group.coalescing = None
    rank.devices.follow_coalesced(calls, None)
    rank.device.release(kernel)
    rank.until(lambda: not any(rank.read()[call.number].is_open for call in calls))
    operations = [rank.operations[call.number] for call in calls]
    assert {operation.how for operation in operations} == {How.EVENT}
    assert len({operation.completed_ns for operation in operations}) == 1
    assert operations[0].completed_ns == pytest.approx(kernel.end_ns, abs=CLOCK_ERROR_NS)
    assert all(operation.started_how is How.EVENT for operation in operations)
    assert len(rank.device.events) == 2 + 2, "two around all of them, and two of the clock's"


def test_coalesced_operations_with_a_work(rank: DeviceRank) -> None:
    """Coalesced operations on the backend's stream all end with the watchdog, and need no second event."""
    rank.device.use_stream(MAIN_STREAM)
    rank.group.coalescing = calls = []
    for _ in range(3):
        rank.leave(rank.enter())
    kernel = rank.device.launch(NCCL_STREAM, None)
    result: torch.futures.Future[int] = torch.futures.Future()
    rank.group.coalescing = None
    rank.devices.follow_coalesced(calls, NcclWork(None, result))
    behind = rank.start(1 * MS)
    rank.until(lambda: all(rank.read()[call.number].started_ns for call in calls))
    assert all(rank.operations[call.number].is_open for call in calls)
    assert len(rank.device.events) == 2 + 2, "the operation behind has taken theirs"
    rank.device.release(kernel)
    result.set_result(0)
    rank.until(lambda: not any(rank.read()[call.number].is_open for call in calls))
    assert {rank.operations[call.number].how for call in calls} == {How.WATCHDOG}
    rank.until_ended(behind, watchdog=True)
