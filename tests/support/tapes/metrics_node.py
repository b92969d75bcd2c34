"""A node's metrics with simulated ranks, polled by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from otel_torchdist.telemetry.metrics.durations import BOUNDS_S
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.rank_metrics import RankMetrics
from otel_torchdist.telemetry.metrics.snapshots import Duration, NodeSnapshot
from tests.support.tapes.fake_tape import RUN_ID, SECOND, FakeTape

METRICS: Final = {metric.name: metric for metric in NUMBER_METRICS}


class Clock:
    """The node's monotonic clock, set by hand."""

    def __init__(self) -> None:
        self.now_ns = 100 * SECOND

    def read(self) -> int:
        """The time in nanoseconds."""
        return self.now_ns


class Node:
    """Ranks, their metrics, and the durations that were passed to listeners.

    Attributes:
        clock: Its clock.
        metrics: The metrics under test.
        durations: Durations that a listener received.
    """

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.metrics = NodeMetrics(clock=self.clock.read)
        self.durations: list[Duration] = []
        self.metrics.listen(self.durations.extend)
        self._directory = directory
        self._tracked: list[tuple[FakeTape, RankMetrics]] = []

    def add(
        self, rank: int = 0, run_id: int = RUN_ID, state: RunIdState = RunIdState.AGREED, **identity: Any
    ) -> FakeTape:
        """Begin to track a new rank, with these changes to the identity of its tape."""
        simulated = FakeTape(self._directory, rank, run_id=run_id, state=state, **identity)
        self._tracked.append((simulated, self.metrics.track(simulated.reader)))
        return simulated

    def forget(self, simulated: FakeTape) -> None:
        """Stop tracking a rank."""
        self._tracked = [(rank, metrics) for rank, metrics in self._tracked if rank is not simulated]
        self.metrics.forget(simulated.reader.identity.nonce)

    def poll(self) -> None:
        """Read every tape once."""
        for rank, metrics in self._tracked:
            metrics.consume(rank.reader.poll(), rank.reader.status(), self.clock.now_ns)

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """The series of a metric."""
        return dict(METRICS[name].read(self.metrics.snapshot()))


def series_of(snapshot: NodeSnapshot) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every series as Prometheus counts them: a histogram has one for each bucket, its sum and its count."""
    for metric in NUMBER_METRICS:
        for labels, _ in metric.read(snapshot):
            yield metric.name, labels
    for metric in HISTOGRAM_METRICS:
        for labels, _ in metric.read(snapshot):
            for bucket in range(len(BOUNDS_S) + 3):
                yield metric.name, (*labels, str(bucket))
