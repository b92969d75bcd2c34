"""The identity of an incident, and the ids of its spans."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.ids import stall_span_id, stall_trace_id


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """The ids of a span to link to. The span may not be exported yet."""

    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class Incident:
    """The identity of an incident, the same in every process that watches the run.

    Attributes:
        run: 128-bit id of the run.
        name: Name of the operation with the longest wait when the incident began.
        agent_id: Id of the judging agent. Agents that cannot reach each other may judge at the same time, and their
            spans share a trace.
    """

    run: int
    name: str
    agent_id: int = 0

    @property
    def trace_id(self) -> int:
        """The id of the incident's trace."""
        return stall_trace_id(self.run, self.name)

    def root(self, epoch: int) -> LinkTarget:
        """Return the root span of an epoch. Each new verdict on the incident begins an epoch."""
        return LinkTarget(self.trace_id, self.span_id(epoch, "root"))

    def span_id(self, epoch: int, span: str) -> int:
        """Return the id of a span of an epoch; `span` names it within the epoch, such as `root` or `rank 2`."""
        return stall_span_id(self.run, self.name, epoch, f"{span} of {self.agent_id}" if self.agent_id else span)


def incident_name(operation_id: OperationId) -> str:
    """Return a name for an operation that is the same in every agent."""
    channel = operation_id.channel
    position = (
        f"{channel.source}>{channel.destination} tag {channel.tag}"
        if channel.is_point_to_point
        else channel.kind.name.lower()
    )
    return f"{channel.group} {position} {operation_id.sequence}"
