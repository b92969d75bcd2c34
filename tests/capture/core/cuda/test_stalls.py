"""Verdicts of the stall detector on tapes of operations that are enqueued ahead on devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from otel_torchdist.judge.stall.events import Event, IncidentResolved, StacksWanted, VerdictGiven
from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.judge.verdict.judging.stuck import TRAIL_NS
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Outcome
from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.devices.device_rank import MAIN_STREAM, WATCHDOG_S, DeviceRank, device_rank
from tests.support.devices.simulated_device import MS
from tests.support.waiting import until

THRESHOLD_S = 0.6


class WatchedPair:
    """Two ranks with a device each, and a detector that reads their tapes."""

    def __init__(self, ranks: list[DeviceRank]) -> None:
        self.ranks = ranks
        self._followers = [TapeFollower(TapeReader.of_writer(rank.recorder.tape)) for rank in ranks]
        self._detector = Detector(StallRules(round(THRESHOLD_S * 1e9)), time.monotonic_ns())
        self._next_round = time.monotonic()
        self.events: list[Event] = []

    def poll(self) -> None:
        """Run one turn of a reader; PyTorch's watchdog makes its rounds meanwhile."""
        if time.monotonic() >= self._next_round:
            self._next_round = time.monotonic() + WATCHDOG_S
            for rank in self.ranks:
                rank.watchdog()
        for rank, follower in zip(self.ranks, self._followers, strict=True):
            rank.recorder.tape.beat()
            follower.observe(follower.reader.poll())
        found = self._detector.process(worlds(self._followers, time.monotonic_ns()))
        self.events += [event for event in found if not isinstance(event, StacksWanted)]

    def check_until(self, condition: Callable[[], object]) -> None:
        """Turn until a condition holds."""
        until(lambda: (self.poll(), condition())[1])

    def run_for(self, seconds: float) -> None:
        """Turn for some time."""
        ends = time.monotonic() + seconds
        self.check_until(lambda: time.monotonic() > ends)

    @property
    def verdicts(self) -> list[VerdictGiven]:
        """The verdicts that the detector has reported."""
        return [event for event in self.events if isinstance(event, VerdictGiven)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[WatchedPair]:
    """Two ranks."""
    with ExitStack() as stack:
        yield WatchedPair([stack.enter_context(device_rank(tmp_path, rank=rank)) for rank in (0, 1)])


def test_no_stall_behind_a_long_kernel(pair: WatchedPair) -> None:
    """Both devices compute longer than the threshold with collectives in their queues: no rank waits."""
    kernels = [rank.device.launch(MAIN_STREAM, None) for rank in pair.ranks]
    queues = [[rank.run(1 * MS), rank.start(1 * MS), rank.run(1 * MS)] for rank in pair.ranks]
    pair.run_for(2 * THRESHOLD_S)
    for rank, kernel in zip(pair.ranks, kernels, strict=True):
        rank.device.release(kernel)
    pair.check_until(
        lambda: not any(rank[one].is_open for rank, queue in zip(pair.ranks, queues, strict=True) for one in queue)
    )
    assert pair.events == []


def test_a_device_that_does_not_come(pair: WatchedPair) -> None:
    """One device computes while the other waits in the collective: the verdict names the computing rank."""
    waiting, busy = pair.ranks
    kernel = busy.device.launch(MAIN_STREAM, None)
    collectives = [rank.run(None) for rank in pair.ranks]
    pair.check_until(lambda: pair.verdicts)
    [given] = pair.verdicts
    assert (given.verdict.kind, given.verdict.ranks, given.verdict.waiting) == (VerdictKind.DEVICE, (1,), (0,))
    assert given.verdict.since_ns == waiting[collectives[0]].started_ns
    busy.device.release(kernel)
    for rank, issued in zip(pair.ranks, collectives, strict=True):
        rank.device.release(issued.kernel)
    pair.check_until(lambda: any(isinstance(event, IncidentResolved) for event in pair.events))
    assert [event.outcome for event in pair.events if isinstance(event, IncidentResolved)] == [Outcome.COMPLETED]


@pytest.mark.thorough
def test_a_device_that_reports_an_error(pair: WatchedPair) -> None:
    """After a device error a rank's operations are unknown, and no verdict blames the rank that waits for it."""
    broken, waits = pair.ranks
    for rank in pair.ranks:
        rank.run(None)
    pair.check_until(lambda: waits[waits.issued[0]].started_ns is not None)
    broken.device.failure = "cudaErrorIllegalAddress"
    pair.check_until(lambda: not broken[broken.issued[0]].is_open)
    pair.run_for(TRAIL_NS / 1e9 + THRESHOLD_S)
    assert {one.verdict.kind for one in pair.verdicts} == {VerdictKind.TRANSPORT}
