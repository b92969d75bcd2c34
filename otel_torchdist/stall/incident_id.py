"""The name of a run's incident, and the ids of the spans that report it."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.naming import stall_span_id, stall_trace_id
from otel_torchdist.telemetry.spans.model import LinkTarget


@dataclass(frozen=True, slots=True)
class Incident:
    """The name of a run's incident, the same in every process that watches the run.

    Attributes:
        run: 128-bit id of the run.
        name: The operation with the longest wait when the incident began.
        agent_id: Id of the agent that judges. Agents that cannot reach each other may judge at the same time, in one
            trace.
    """

    run: int
    name: str
    agent_id: int = 0

    @property
    def trace_id(self) -> int:
        """The id of its trace."""
        return stall_trace_id(self.run, self.name)

    def root(self, epoch: int) -> LinkTarget:
        """The root span of one epoch."""
        return LinkTarget(self.trace_id, self.bar(epoch, "root"))

    def bar(self, epoch: int, bar: str) -> int:
        """The span id of one bar of an epoch."""
        return stall_span_id(self.run, self.name, epoch, f"{bar} of {self.agent_id}" if self.agent_id else bar)
