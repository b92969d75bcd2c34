"""What the detector reports, as data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from opentelemetry.util.types import AttributeValue

from otel_torchdist.naming import stall_span_id, stall_trace_id
from otel_torchdist.stall.findings.checkpoints import SaveFailed
from otel_torchdist.stall.findings.remote_calls import TroubledCalls
from otel_torchdist.stall.findings.shared_groups import GroupShared
from otel_torchdist.stall.findings.slow import PathLengths, SlowPart
from otel_torchdist.stall.findings.stragglers import Lateness, Straggler
from otel_torchdist.stall.findings.values import Diverged, NonFinite
from otel_torchdist.tape.rescue import Rescue
from otel_torchdist.telemetry.spans.model import LinkTarget
from otel_torchdist.verdict.model import Outcome, Verdict
from otel_torchdist.verdict.waits import Wait
from otel_torchdist.world.calls import GroupView, OperationId
from otel_torchdist.world.mismatch import Mismatch
from otel_torchdist.world.model import WorldSnapshot


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
class MismatchFound:
    """Ranks have made different calls at the same position of a group, and nothing stalls.

    Attributes:
        incident: Names its trace.
        mismatch: What they disagree about.
        group: The group; None when it is not known.
        world: The snapshot.
    """

    incident: Incident
    mismatch: Mismatch
    group: GroupView | None
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class StragglerFound:
    """A rank repeatedly comes last.

    Attributes:
        incident: Names its trace.
        straggler: The rank, and what the others lose.
        world: The snapshot.
    """

    incident: Incident
    straggler: Straggler
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class StragglerGone:
    """A rank is no longer a straggler.

    Attributes:
        run: 128-bit id.
        group: Key of the group.
        rank: The rank.
    """

    run: int
    group: str
    rank: int


@dataclass(frozen=True, slots=True)
class ArrivalsCompared:
    """Which ranks came last in some calls.

    Attributes:
        run: 128-bit id.
        lateness: One entry per group.
    """

    run: int
    lateness: tuple[Lateness, ...]


@dataclass(frozen=True, slots=True)
class PathMeasured:
    """The critical path of the newest steps.

    Attributes:
        run: 128-bit id.
        lengths: Its lengths.
    """

    run: int
    lengths: PathLengths


@dataclass(frozen=True, slots=True)
class SlowFound:
    """A rank, a node or a stage of a pipeline makes steps longer.

    Attributes:
        incident: Names its trace.
        part: What is slow, and what it costs.
        world: The snapshot.
    """

    incident: Incident
    part: SlowPart
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class SlowGone:
    """What was slow is not any more.

    Attributes:
        run: 128-bit id.
        part: As it was reported.
    """

    run: int
    part: SlowPart


@dataclass(frozen=True, slots=True)
class CallsStuck:
    """Remote procedure calls cannot go on.

    Attributes:
        incident: Names its trace.
        calls: Which, and why.
        world: The snapshot.
    """

    incident: Incident
    calls: TroubledCalls
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class CallsGoOn:
    """They can go on, or have ended.

    Attributes:
        run: 128-bit id.
        calls: As they were reported.
    """

    run: int
    calls: TroubledCalls


@dataclass(frozen=True, slots=True)
class ValuesFound:
    """Values that are not finite, or outputs that differ where they must be equal.

    Attributes:
        incident: Names its trace.
        values: What was found.
        world: The snapshot.
    """

    incident: Incident
    values: NonFinite | Diverged
    world: WorldSnapshot


@dataclass(frozen=True, slots=True)
class ProblemFound:
    """A checkpoint that could not be saved, or a group that two threads use at the same time.

    Attributes:
        incident: Names its trace.
        problem: What was found.
        world: The snapshot.
    """

    incident: Incident
    problem: SaveFailed | GroupShared
    world: WorldSnapshot


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


Finding: TypeAlias = MismatchFound | StragglerFound | SlowFound | ValuesFound | ProblemFound | CallsStuck
FINDINGS: Final = (MismatchFound, StragglerFound, SlowFound, ValuesFound, ProblemFound, CallsStuck)
Event: TypeAlias = (
    StacksWanted
    | StacksOverdue
    | MarkerDue
    | VerdictGiven
    | IncidentHandedOver
    | IncidentResolved
    | MismatchFound
    | StragglerFound
    | StragglerGone
    | ArrivalsCompared
    | PathMeasured
    | SlowFound
    | SlowGone
    | ValuesFound
    | ProblemFound
    | TimeoutShort
    | CallsStuck
    | CallsGoOn
)
