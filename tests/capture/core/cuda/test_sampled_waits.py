"""Waits beyond the first operations of a communicator, of which only some are timed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from otel_torchdist.capture.core.cuda.queues import FIRST_TIMED, MAX_LOOKED_AT, PAIR_EVERY, is_timed
from otel_torchdist.model.kinds import How
from otel_torchdist.model.operations import Operation
from tests.support.devices.device_rank import MAIN_STREAM, DeviceRank, Issued, device_rank
from tests.support.devices.simulated_device import MS
from tests.support.launch.jobs import Jobs
from tests.support.native.native_library import KERNELS, simulated_library
from tests.support.tapes.recorded import RecordedTape

CLOCK_ERROR_NS = 3 * MS
LASTS_NS = 10 * MS


def test_share_of_timed_operations() -> None:
    """After the first 32 operations, one in 16 is timed, in pairs; and soon each position of a step of any length."""
    later = range(FIRST_TIMED + 1, FIRST_TIMED + 100_001)
    assert all(map(is_timed, range(1, FIRST_TIMED + 1)))
    assert sum(map(is_timed, later)) == pytest.approx(2 * len(later) / PAIR_EVERY, rel=0.01)
    timed = [number for number in later if is_timed(number)]
    assert all(is_timed(number - 1) or is_timed(number + 1) for number in timed)
    assert max(after - before for before, after in itertools.pairwise(timed)) < MAX_LOOKED_AT
    for length in (1, 2, 3, 4, 8, 16, 32, 64, 100, 128):
        seconds = [number for number in timed[: 40 * length] if is_timed(number - 1)]
        assert {number % length for number in seconds} == set(range(length))


def queue_of(rank: DeviceRank, count: int) -> tuple[list[Issued], list[Operation]]:
    """Run operations without gaps, with a wait for each, while the watchdog is late.

    All are enqueued before the first one runs, so each wait blocks, however slow the host is.
    """
    ahead = rank.device.launch(MAIN_STREAM, None)
    issued: list[Issued] = []
    for _ in range(count):
        issued.append(rank.start(LASTS_NS))
        rank.wait_on_stream(issued[-1])
    rank.device.release(ahead)
    return issued, rank.until_ended(*issued, watchdog=True)


def test_a_queue_without_gaps(tmp_path: Path) -> None:
    """All operations are counted. A duration is known of each timed operation behind a timed one, and of no other.

    The watchdog's late end of the operation ahead must not become the start of a timed one, which hid all durations.
    """
    with device_rank(tmp_path, max_events=2048) as rank:
        rank.group.counter[0] = FIRST_TIMED  # as after the first operations
        issued, operations = queue_of(rank, 160)
    assert [operation.sequence for operation in operations] == [*range(FIRST_TIMED + 1, FIRST_TIMED + 161)]
    seconds = [
        operation for operation in operations if is_timed(operation.sequence) and is_timed(operation.sequence - 1)
    ]
    known = [operation for operation in operations if operation.is_timed and operation.sequence > FIRST_TIMED + 2]
    assert len(known) >= len(seconds) // 2 > 0, "a loaded machine may be too slow for some waits to block"
    assert {operation.sequence for operation in known} <= {operation.sequence for operation in seconds}
    for operation in known:
        kernel = issued[operations.index(operation)].kernel
        assert operation.completed_ns is not None
        assert operation.started_ns is not None
        assert operation.completed_ns == pytest.approx(kernel.end_ns, abs=CLOCK_ERROR_NS)
        assert operation.completed_ns - operation.started_ns == pytest.approx(LASTS_NS, abs=2 * MS)


def test_late_ends_are_bounded(tmp_path: Path) -> None:
    """An end that only the watchdog shows is never before the operation's end, nor after that of the next timed one."""
    with device_rank(tmp_path, max_events=2048) as rank:
        rank.group.counter[0] = FIRST_TIMED
        issued, operations = queue_of(rank, 100)
    bound_ns = None
    for one, operation in zip(reversed(issued), reversed(operations), strict=True):
        assert operation.completed_ns is not None
        assert one.kernel.end_ns is not None
        assert operation.completed_ns >= one.kernel.end_ns - CLOCK_ERROR_NS
        assert bound_ns is None or operation.completed_ns <= bound_ns
        if operation.how is How.EVENT:
            bound_ns = operation.completed_ns


@dataclass(frozen=True)
class SampledRun:
    """Operations that a kernel has recorded.

    Attributes:
        tape: The tape.
        timed: Numbers of the operations whose waits were timed, from 1.
        events: Number of events after each 50 operations.
        ends: Ends of the operations on the device.
        raised: Number of waits that raised.
    """

    tape: RecordedTape
    timed: list[int]
    events: list[int]
    ends: list[int]
    raised: int


@pytest.fixture(scope="module")
def runs(jobs_of: dict[str, Jobs]) -> dict[str, SampledRun]:
    """The program, recorded by each kernel."""
    found: dict[str, SampledRun] = {}
    for kernel, jobs in jobs_of.items():
        job = jobs.run("sampled", 1, str(simulated_library()))
        said = job.ranks[0].lines()[-1]
        found[kernel] = SampledRun(job.tapes[0], said["timed"], said["events"], said["ends"], said["raised"])
    return found


@pytest.mark.parametrize("kernel", KERNELS)
def test_both_kernels_time_the_same_waits(runs: dict[str, SampledRun], kernel: str) -> None:
    """Python and the library choose the same operations, and record all of them with their numbers."""
    run = runs[kernel]
    sequences = [operation.raw.sequence for operation in run.tape.operations]
    assert sequences == [*range(1, 401)]
    assert run.timed == [number for number in sequences[:200] if is_timed(number)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_durations_beyond_the_first(runs: dict[str, SampledRun], kernel: str) -> None:
    """Beyond the first operations, durations are those of timed operations, and the device's own."""
    run = runs[kernel]
    later = [operation.raw for operation in run.tape.operations[FIRST_TIMED + 1 : 200]]
    known = [operation for operation in later if operation.is_timed]
    assert known
    for operation in known:
        assert is_timed(operation.sequence)
        assert operation.completed_ns == pytest.approx(run.ends[operation.sequence - 1], abs=CLOCK_ERROR_NS)


@pytest.mark.parametrize("kernel", KERNELS)
def test_events_are_given_back(runs: dict[str, SampledRun], kernel: str) -> None:
    """Neither a second wait for an operation nor a wait that raises takes events forever."""
    run = runs[kernel]
    assert run.raised == 200
    assert run.events[-1] <= run.events[0] + 16
    assert not [operation for operation in run.tape.operations if operation.how == "UNTRACKED"]
