"""The events of the detector, its interface to other agents, and its view of each run, as frozen data."""

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
from otel_torchdist.model.rank_state.rescue import Rescue
from otel_torchdist.model.reports.finding import Finding, FindingOver
from otel_torchdist.model.reports.incident import Incident, LinkTarget
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.telemetry import semconv


class Occasion(enum.Enum):
    """The reason why a verdict is given now."""

    OPENED = "opened"
    CHANGED = "changed"
    GROWN = "grown"
    """The same verdict still holds after the age has doubled."""


@dataclass(frozen=True, slots=True)
class StacksWanted:
    """A request for stacks to the ranks that write these tapes."""

    nonces: frozenset[int]


@dataclass(frozen=True, slots=True)
class StacksOverdue:
    """A request for stacks by signal, to ranks that do not answer because native code holds their GIL."""

    nonces: frozenset[int]


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict in words, for code that only passes it on.

    Attributes:
        epoch: The newest epoch of the incident, or the epoch about to be reported.
        operation_id: The root operation, at which the search for the cause ended.
        text: The verdict as sentences.
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
        """The named ranks, as `0-7,16`."""
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
        nonces: Tapes of the run's ranks seen by this process.
        stands_still: Whether no rank of the run shows a sign of life, for example because the job is suspended.
        rescues: Progress of the rescue by rank; empty if this agent knows of none.
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
        nth: Number of this marker for the operation; only ever grows.
        ruling: The cause, which may lie in another operation.
        taken_ns: Monotonic time of the observation.
    """

    wait: Wait
    nth: int
    ruling: Ruling
    taken_ns: int


@dataclass(frozen=True, slots=True)
class VerdictGiven:
    """The verdict on a run's incident.

    Attributes:
        occasion: The reason for giving it now.
        epoch: Number of this report on the incident; only ever grows.
        epoch_before: Number of the previous report; None for the first.
        verdict: The verdict with places.
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
    """Another agent judges the run from now on, and continues the ongoing incident."""

    incident: Incident


@dataclass(frozen=True, slots=True)
class IncidentResolved:
    """An incident is over.

    Attributes:
        outcome: How it ended.
        epoch: As in `VerdictGiven`.
        epoch_before: As in `VerdictGiven`.
        verdict: The last verdict.
        world: The snapshot; if the run's tapes are gone, the last snapshot that contained the run.
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
        """Time from the first wait to the end."""
        return self.verdict.age_ns(self.ended_ns)


@dataclass(frozen=True, slots=True)
class TimeoutShort:
    """A group's backend may end a stall before it is reported and acted on.

    Attributes:
        run: 128-bit id.
        group: The group, with its timeout.
        backend: `gloo` or `NCCL`.
        needed_ns: Time that the timeout must exceed: the threshold, plus the grace period if actions are set.
    """

    run: int
    group: GroupView
    backend: str
    needed_ns: int


@dataclass(frozen=True, slots=True)
class RecordingSwitchedOff:
    """Recording was switched off in a rank of a run, so that nothing more is judged.

    Attributes:
        run: 128-bit id.
        at_wall_ns: When, in nanoseconds since the epoch.
    """

    run: int
    at_wall_ns: int


Event: TypeAlias = (
    StacksWanted
    | StacksOverdue
    | MarkerDue
    | VerdictGiven
    | IncidentHandedOver
    | IncidentResolved
    | TimeoutShort
    | RecordingSwitchedOff
    | Finding
    | FindingOver
    | ArrivalsCompared
    | PathMeasured
)


# --- agents of other nodes --------------------------------------------------------------------------------------------
# Interface to the agents of other nodes with ranks of the same run. One of them judges for all.


@dataclass(frozen=True, slots=True)
class JudgingAgent:
    """Another agent, which judges.

    Attributes:
        node: Name of its node; '' if unknown.
        page: Address of its live page; '' if it serves none, or if unknown.
    """

    node: str
    page: str


@dataclass(frozen=True, slots=True)
class Leads:
    """This agent judges.

    Attributes:
        world: All ranks seen by any agent.
        agent_id: This agent's id; see `Incident`.
        off_wall_ns: When recording was switched off on some node, in ns since the epoch; 0 if it was not.
    """

    world: WorldSnapshot
    agent_id: int = 0
    off_wall_ns: int = 0


@dataclass(frozen=True, slots=True)
class Follows:
    """Another agent judges.

    Attributes:
        ruling: Its ruling on the ongoing stall; None if there is none.
        is_hurried: Whether that agent makes passes at short intervals.
        judge: The judging agent.
        rescues: Progress of the rescue by rank, as last reported by the judging agent; empty if none has begun.
        off_wall_ns: As in `Leads`.
    """

    ruling: Ruling | None
    is_hurried: bool = False
    judge: JudgingAgent = field(default=JudgingAgent("", ""), compare=False)
    rescues: Mapping[int, Rescue] = field(default_factory=dict[int, Rescue])
    off_wall_ns: int = 0


@dataclass(frozen=True, slots=True)
class Undecided:
    """The peers have been asked, but have not answered yet."""


Role: TypeAlias = Leads | Follows | Undecided


class PeerAgents(Protocol):
    """The agents with ranks of the same runs. No method blocks."""

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Role:
        """Share the local ranks with the peers, and return which agent judges.

        Args:
            world: The local ranks of a run.
            suspects_stall: Whether a stall is ongoing or near.
        """
        ...

    def publish(self, run: int, ruling: Ruling | None) -> None:
        """Send the current ruling on a run to the peers, or None if there is none."""
        ...

    def want_calls(self, run: int, windows: frozenset[tuple[Channel, int]]) -> None:
        """Request these windows of calls in full from the peers, while they still have them."""
        ...

    def request_stacks(self, wanted: StacksWanted | StacksOverdue) -> None:
        """Pass a request for stacks on to the peers."""
        ...

    def requested_stacks(self) -> list[StacksWanted | StacksOverdue]:
        """Return requests of peers for stacks of local ranks, each once."""
        ...


# --- runs as seen in a pass -------------------------------------------------------------------------------------------
# A reader's view of a run after a pass, for live pages. Frozen data only.


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run as of the last pass.

    Attributes:
        world: The ranks seen here; the ranks of all nodes if this agent judges.
        ruling: The latest ruling on the ongoing stall by the judging agent; None if there is none.
        verdict: This agent's verdict behind the ruling; None if there is none.
        judge: The judging agent; None if it is this one.
        final: This agent's ruling on the last stall, if its ranks ended in it; None otherwise.
    """

    world: WorldSnapshot
    ruling: Ruling | None
    verdict: Verdict | None
    judge: JudgingAgent | None
    final: Ruling | None = None
