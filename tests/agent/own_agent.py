"""An agent of the test's own process, which the test lets take its turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.foreground import LifeLog
from otel_torchdist.agent.job import Job
from otel_torchdist.config import Config
from otel_torchdist.telemetry import semconv
from tests.agent.conftest import quiet_outputs
from tests.support.receivers.memory_sink import MemorySink
from tests.support.tapes.metrics_node import METRICS
from tests.support.waiting import until


class OwnAgent:
    """An agent that exports to memory, and reads one job directory.

    Attributes:
        sink: What it exports, checked as it arrives.
        agent: The agent.
    """

    def __init__(self, directory: Path, **settings: Any) -> None:
        """Begin to read a directory, with settings of `Config`."""
        self.sink = MemorySink()
        config = dataclasses.replace(Config(machine=False, critical_path=False), **settings)
        self.agent = Agent(config, lambda: quiet_outputs(sink=self.sink)).add(Job(directory))
        self._log = LifeLog(self.agent.reader)

    def turn_until(self, condition: Callable[[], object]) -> None:
        """Let it take turns until something holds."""

        def holds() -> bool:
            self.agent.turn()
            self._log.update()
            return bool(condition())

        until(holds)

    def shown(self, metric: str) -> dict[int, float]:
        """The series of a metric that has one for each rank, by rank."""
        series = METRICS[metric].read(self.agent.reader.metrics.snapshot())
        return {int(labels[METRICS[metric].labels.index("rank")]): value for labels, value in series}

    def values(self, metric: str) -> list[float]:
        """The values of all series of a metric."""
        return [value for _, value in METRICS[metric].read(self.agent.reader.metrics.snapshot())]

    def exported(self, name: str) -> list[tuple[object, object]]:
        """Rank and sequence of all spans with this name, in order."""
        found = [span.attributes for span in self.sink.spans if span.name == name]
        return sorted((one[semconv.RANK], one[semconv.SEQUENCE]) for one in found)  # type: ignore[type-var]

    def close(self) -> None:
        """Let it read the rest, and end."""
        self.agent.close()
