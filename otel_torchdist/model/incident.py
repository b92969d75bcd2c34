"""The name of a run's incident, and the ids of the spans that report it."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.model.calls import OperationId
from otel_torchdist.naming import stall_span_id, stall_trace_id


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """A span of any trace, exported or still to come."""

    trace_id: int
    span_id: int


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


def incident_name(operation_id: OperationId) -> str:
    """A name for an operation, the same in every agent."""
    channel = operation_id.channel
    meeting = (
        f"{channel.source}>{channel.destination} tag {channel.tag}"
        if channel.is_point_to_point
        else channel.kind.name.lower()
    )
    return f"{channel.group} {meeting} {operation_id.sequence}"
