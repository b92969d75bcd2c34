"""Findings: problems in a run that do not stall it. All outputs render the same `Finding`."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.naming import stall_span_id, stall_trace_id
from otel_torchdist.model.snapshot import WorldSnapshot

# --- kinds ------------------------------------------------------------------------------------------------------------
# Each kind has a row here and a detector in `judge/stall/findings`.


class FindingKind(enum.Enum):
    """The kinds of findings. The value is the verdict in spans, log events, metrics and `--json`.

    Attributes:
        meaning: The clause in the help text of the findings metric.
    """

    _value_: str
    meaning: str

    def __new__(cls, value: str, meaning: str) -> FindingKind:
        """Make the member of a row."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.meaning = meaning
        return kind

    MISMATCHED = "mismatched", "ranks have made calls that do not match, and nothing stalls"
    STRAGGLER = "straggler", "a rank repeatedly comes last"
    SLOW_RANK = "slow_rank", "a rank that makes steps notably longer"
    SLOW_NODE = "slow_node", "a node that makes steps notably longer"
    SLOW_STAGE = "slow_stage", "a pipeline stage that makes steps notably longer"
    NON_FINITE = "non_finite", "the first ranks with an input that is infinite or not a number"
    DIVERGED = "diverged", "ranks have different results or parameters where all must have the same"
    CHECKPOINT_FAILED = (
        "checkpoint_failed",
        "a checkpoint could not be saved, because an exception was raised on these ranks",
    )
    SHARED_GROUP = "shared_group", "two threads of a rank use one group at the same time"
    STARVED = "starved", "all threads that serve remote procedure calls wait in calls of their own"
    FROZEN = "frozen", "a process that should run remote procedure calls does not run"
    DEAD = "dead", "a process that serves remote procedure calls is gone, while others go on"
    IDLE = "idle", "no rank has called an operation for long, and all stand still"


class Severity(enum.Enum):
    """The severity of a finding."""

    WARNING = "warning"
    """The run loses time."""
    ERROR = "error"
    """Results may be wrong, or work is lost."""


AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding, with everything that any output shows of it.

    Attributes:
        incident: Identifies the finding's trace.
        ranks: The named ranks, ascending.
        group: Key of the group concerned; '' if there is none or several.
        operation: Name of the operation concerned; '' if there is none or several.
        sentence: The finding in words.
        world: The snapshot that shows the finding.
        attributes: Span attributes besides run, verdict and ranks, by their names in `semconv`.
    """

    kind: FindingKind
    severity: Severity
    incident: Incident
    ranks: tuple[int, ...]
    group: str
    operation: str
    sentence: str
    world: WorldSnapshot
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])

    @property
    def run(self) -> int:
        """128-bit id of the run."""
        return self.incident.run

    @property
    def nonces(self) -> frozenset[int]:
        """Nonces of the tapes of the run's ranks on this node."""
        return frozenset(view.nonce for view in self.world.ranks.values() if not view.is_remote)


@dataclass(frozen=True, slots=True)
class FindingOver:
    """The end of a finding. Attributes are as in `Finding`."""

    kind: FindingKind
    run: int
    ranks: tuple[int, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class JudgedWorld:
    """A snapshot of a run, with the ids that incidents in it are named by.

    Attributes:
        run: 128-bit id of the run, or a substitute.
        agent_id: See `Incident`.
    """

    world: WorldSnapshot
    run: int
    agent_id: int = 0

    def incident(self, name: str) -> Incident:
        """Return an incident of this run; `name` is unique within the run."""
        return Incident(self.run, name, self.agent_id)


# --- slow steps -------------------------------------------------------------------------------------------------------
# The parts of a run that make its steps longer, by the critical path across ranks.


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A rank, node or pipeline stage that computes longer than its peers and so makes steps notably longer.

    Attributes:
        kind: `SLOW_RANK`, `SLOW_NODE` or `SLOW_STAGE`.
        ranks: Global ranks of the part, ascending.
        operation: The operation that the part reaches later than its peers; '' if there are several.
        group: Key of the operation's group; '' if there are several.
        call_site: The operation's call site; None if unknown or if there are several.
        excess_s: Extra computing time in each step, in seconds.
        gain_s: Upper bound on the time a step would save, in seconds.
        step_s: Median duration of a step, in seconds.
        steps: Number of analysed steps.
        compared: Ranks whose calls were compared, ascending.
        text: The finding as a sentence.
    """

    kind: FindingKind
    ranks: tuple[int, ...]
    operation: str
    group: str
    call_site: CallSiteName | None
    excess_s: float
    gain_s: float
    step_s: float
    steps: int
    compared: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Gain:
    """The time that a step would save at most without one cause.

    Attributes:
        cause: The kind of cause: `line`, `rank`, `node`, `stage` or `transfer`.
        ranks: The ranks concerned; empty for a transfer.
        operation: The operation that the ranks compute before, or that transfers; '' if there are several.
    """

    cause: str
    ranks: tuple[int, ...]
    operation: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PathLengths:
    """The critical path of an average steady step, in seconds.

    Attributes:
        kinds: Length of the path by kind: `computing`, `transfer`.
        ranks: Computing time on the path, for the ranks with the most.
        gains: Gains, the greatest first.
    """

    kinds: dict[str, float]
    ranks: dict[int, float]
    gains: tuple[Gain, ...]


# --- incidents --------------------------------------------------------------------------------------------------------
# The name of an incident, and the ids of its spans.


@dataclass(frozen=True, slots=True)
class LinkTarget:
    """A span of any trace, whether exported already or not."""

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
        """Return the root span of an epoch."""
        return LinkTarget(self.trace_id, self.bar(epoch, "root"))

    def bar(self, epoch: int, bar: str) -> int:
        """Return the span id of a bar of an epoch."""
        return stall_span_id(self.run, self.name, epoch, f"{bar} of {self.agent_id}" if self.agent_id else bar)


def incident_name(operation_id: OperationId) -> str:
    """Return a name for an operation that is the same in every agent."""
    channel = operation_id.channel
    meeting = (
        f"{channel.source}>{channel.destination} tag {channel.tag}"
        if channel.is_point_to_point
        else channel.kind.name.lower()
    )
    return f"{channel.group} {meeting} {operation_id.sequence}"
