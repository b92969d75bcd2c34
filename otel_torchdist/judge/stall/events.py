"""What the detector reports, as data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from opentelemetry.util.types import AttributeValue

from otel_torchdist.judge.stall.findings.slow import PathMeasured
from otel_torchdist.judge.stall.findings.stragglers import ArrivalsCompared
from otel_torchdist.judge.verdict.rules import Wait
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict
from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.finding import Finding, FindingOver, Incident, LinkTarget
from otel_torchdist.model.rescue import Rescue
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.telemetry import semconv


class Occasion(enum.Enum):
    """Why a verdict is given now."""

    OPENED = "opened"
    CHANGED = "changed"
    GROWN = "grown"
    """The same verdict still holds, at twice the age."""


@dataclass(frozen=True, slots=True)
class StacksWanted:
    """The ranks that write these tapes should be asked for their stacks."""

    nonces: frozenset[int]


@dataclass(frozen=True, slots=True)
class StacksOverdue:
    """The ranks that write these tapes did not answer: the GIL is held, and only a signal can get a stack."""

    nonces: frozenset[int]


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict in words, for code that only passes it on.

    Attributes:
        incident: The incident.
        epoch: Its newest epoch, or the one that is about to be reported.
        operation_id: The operation at which the search for the cause ended.
        text: The verdict as a sentence.
        attributes: The verdict as span attributes.
    """

    incident: Incident
    epoch: int
    operation_id: OperationId
    text: str
    attributes: Mapping[str, AttributeValue]

    @property
    def verdict(self) -> str:
        """Name of the verdict's kind; '' if the attributes, which another agent may have sent, lack it."""
        return str(self.attributes.get(semconv.VERDICT, ""))

    @property
    def kind(self) -> VerdictKind | None:
        """The verdict's kind; None for a kind that this version does not know."""
        return next((kind for kind in VerdictKind if kind.value == self.verdict), None)

    @property
    def ranks(self) -> str:
        """The ranks that the verdict names, as `0-7,16`."""
        return str(self.attributes.get(semconv.VERDICT_RANKS, ""))

    @property
    def operation(self) -> str:
        """Name of the operation; '' if the attributes lack it."""
        return str(self.attributes.get(semconv.OPERATION, ""))


@dataclass(frozen=True, slots=True)
class OngoingStall:
    """An ongoing stall.

    Attributes:
        ruling: The latest ruling on it.
        is_ours: Whether this process gave that ruling.
        nonces: Tapes of the run's ranks that this process sees.
        stands_still: Whether no rank of the run shows any sign of life, as when the whole job is suspended.
        rescues: How far the rescue of each rank of the run has come, as far as it is known here.
    """

    ruling: Ruling
    is_ours: bool
    nonces: frozenset[int] = frozenset()
    stands_still: bool = False
    rescues: Mapping[int, Rescue] = field(default_factory=dict[int, Rescue])


@dataclass(frozen=True, slots=True)
class MarkerDue:
    """A stalled operation has reached the threshold, or twice the age of its last marker.

    Attributes:
        wait: The rank and the operation.
        nth: Number of this marker among those of the operation; only ever grows.
        ruling: The cause, which may lie in another operation.
        taken_ns: When that was seen, in monotonic time.
    """

    wait: Wait
    nth: int
    ruling: Ruling
    taken_ns: int


@dataclass(frozen=True, slots=True)
class VerdictGiven:
    """The verdict on a run's incident.

    Attributes:
        occasion: Why now.
        incident: The incident.
        epoch: Its number among the reports on the incident; only ever grows.
        epoch_before: The previous one; None for the first.
        verdict: The verdict with places.
        world: The snapshot.
        predecessor: The last report on this incident by another agent, which is gone.
    """

    occasion: Occasion
    incident: Incident
    epoch: int
    epoch_before: int | None
    verdict: Verdict
    world: WorldSnapshot
    predecessor: LinkTarget | None = None


@dataclass(frozen=True, slots=True)
class IncidentHandedOver:
    """Another agent judges from now on, and continues an ongoing incident."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class IncidentResolved:
    """An incident is over.

    Attributes:
        outcome: How it ended.
        incident: The incident.
        epoch: As in `VerdictGiven`.
        epoch_before: As in `VerdictGiven`.
        verdict: The last verdict.
        world: The snapshot; if the run's tapes are gone, the last one with the run in it.
        ended_ns: Monotonic time.
    """

    outcome: Outcome
    incident: Incident
    epoch: int
    epoch_before: int
    verdict: Verdict
    world: WorldSnapshot
    ended_ns: int

    @property
    def length_ns(self) -> int:
        """The time from the first wait to the end."""
        return self.verdict.age_ns(self.ended_ns)


@dataclass(frozen=True, slots=True)
class TimeoutShort:
    """A group's backend may end a stall before it has been reported and acted on.

    Attributes:
        run: 128-bit id.
        group: The group, with its timeout.
        backend: Its backend: `gloo`, or `NCCL`.
        needed_ns: What its timeout would have to exceed: the threshold, and the grace of the actions if there are any.
    """

    run: int
    group: GroupView
    backend: str
    needed_ns: int


Event: TypeAlias = (
    StacksWanted
    | StacksOverdue
    | MarkerDue
    | VerdictGiven
    | IncidentHandedOver
    | IncidentResolved
    | TimeoutShort
    | Finding
    | FindingOver
    | ArrivalsCompared
    | PathMeasured
)


# --- agents of other nodes --------------------------------------------------------------------------------------------
# Interface to the agents of other nodes that see ranks of the same run; one of them judges for all.


@dataclass(frozen=True, slots=True)
class JudgingAgent:
    """Another agent, which judges.

    Attributes:
        node: Its node's name; '' while that is not known.
        page: Address of its live page; '' if it serves none, or has not said.
    """

    node: str
    page: str


@dataclass(frozen=True, slots=True)
class Leads:
    """This agent judges.

    Attributes:
        world: All ranks that any agent sees.
        agent_id: This agent's id; see `Incident`.
    """

    world: WorldSnapshot
    agent_id: int = 0


@dataclass(frozen=True, slots=True)
class Follows:
    """Another agent judges.

    Attributes:
        ruling: Its ruling on the ongoing stall; None if there is none.
        is_hurried: Whether it asks at short intervals.
        judge: That agent.
        rescues: How far the rescue of each rank has come, as it has last said; empty if none has begun.
    """

    ruling: Ruling | None
    is_hurried: bool = False
    judge: JudgingAgent = field(default=JudgingAgent("", ""), compare=False)
    rescues: Mapping[int, Rescue] = field(default_factory=dict[int, Rescue])


@dataclass(frozen=True, slots=True)
class Undecided:
    """The peers have been asked, and have not answered yet."""


Role: TypeAlias = Leads | Follows | Undecided


class PeerAgents(Protocol):
    """The agents that see ranks of the same runs. No method blocks."""

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Role:
        """Share what is seen here with the peers, and learn which agent judges.

        Args:
            world: The local ranks of a run.
            suspects_stall: Whether a stall is ongoing or near.
        """
        ...

    def publish(self, run: int, ruling: Ruling | None) -> None:
        """Send the current ruling on a run to the peers; None if there is none."""
        ...

    def want_calls(self, run: int, windows: frozenset[tuple[Channel, int]]) -> None:
        """Request these windows of calls in full from the peers, as long as they have them."""
        ...

    def request_stacks(self, wanted: StacksWanted | StacksOverdue) -> None:
        """Pass on which ranks should write their stacks."""
        ...

    def requested_stacks(self) -> list[StacksWanted | StacksOverdue]:
        """Requests of peers for stacks of ranks that are seen here, each once."""
        ...


# --- runs as seen in a pass -------------------------------------------------------------------------------------------
# What a reader sees of a run after a pass, for pages that show it while it runs. Frozen data only.


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run, as of the last pass.

    Attributes:
        world: The ranks that are seen here: those of all nodes if this agent judges.
        ruling: The latest ruling on the ongoing stall, by whichever agent judges; None if there is none.
        verdict: This agent's verdict on it, which the ruling puts into words; None if there is none.
        judge: The agent that judges; None if it is this one.
    """

    world: WorldSnapshot
    ruling: Ruling | None
    verdict: Verdict | None
    judge: JudgingAgent | None
