"""A finding: something wrong in a run that nothing waits for. Each has one value, which all outputs render."""

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
# The kinds of findings. Each is a row here, and a file in `stall/findings` that finds it and says all about it.


class FindingKind(enum.Enum):
    """The kinds of findings. The value is the verdict in spans, log events, metrics and `--json`.

    Attributes:
        meaning: A clause for the help of the metric of findings.
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
    SLOW_RANK = "slow_rank", "a rank without which steps would be notably shorter"
    SLOW_NODE = "slow_node", "a node without which steps would be notably shorter"
    SLOW_STAGE = "slow_stage", "a stage of a pipeline without which steps would be notably shorter"
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
    """How bad a finding is."""

    WARNING = "warning"
    """Time is lost."""
    ERROR = "error"
    """Results may be wrong, or work is lost."""


AttributeValue: TypeAlias = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding, complete for every output.

    Attributes:
        kind: Its kind.
        severity: How bad it is.
        incident: Names its trace.
        ranks: The ranks that it names, ascending.
        group: Key of the group concerned; '' if there is none or several.
        operation: Name of the operation concerned; '' if there is none or several.
        sentence: The finding in words.
        world: The snapshot in which it was found.
        attributes: Attributes of its span beside run, verdict and ranks, by their names in `semconv`.
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
        """Tapes of this node's ranks of the run."""
        return frozenset(view.nonce for view in self.world.ranks.values() if not view.is_remote)


@dataclass(frozen=True, slots=True)
class FindingOver:
    """A finding no longer holds; attributes as in `Finding`."""

    kind: FindingKind
    run: int
    ranks: tuple[int, ...]
    group: str = ""


@dataclass(frozen=True, slots=True)
class JudgedWorld:
    """A snapshot of a run, and how the agent that looks for findings in it names them.

    Attributes:
        world: The snapshot.
        run: 128-bit id of the run, or a substitute.
        agent_id: See `Incident`.
    """

    world: WorldSnapshot
    run: int
    agent_id: int = 0

    def incident(self, name: str) -> Incident:
        """Return the incident with a name that is unique in the run."""
        return Incident(self.run, name, self.agent_id)


# --- slow steps -------------------------------------------------------------------------------------------------------
# What makes the steps of a run longer, as the critical path across its ranks shows it.


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A rank, a node or a stage of a pipeline without which steps would be notably shorter.

    Attributes:
        kind: What it is: `SLOW_RANK`, `SLOW_NODE` or `SLOW_STAGE`.
        ranks: Global ranks that belong to it, ascending.
        operation: The operation before which it computes longer than its peers; '' if there are several.
        group: Key of that operation's group; '' if there are several.
        call_site: The line of that operation; None if there are several, or it is not known.
        excess_s: Seconds for which it computes longer in each step.
        gain_s: Seconds by which a step would be shorter at most.
        step_s: Median length of a step in seconds.
        steps: Number of steps that this is based on.
        compared: Ranks whose calls were compared, ascending.
        text: All of this as a sentence.
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
    """What a step would be shorter at most without one cause.

    Attributes:
        cause: Its kind: `line`, `rank`, `node`, `stage`, `transfer`.
        ranks: The ranks concerned; none for a transfer.
        operation: The operation that they compute before, or that transfers; '' if there are several.
        seconds: The gain.
    """

    cause: str
    ranks: tuple[int, ...]
    operation: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PathLengths:
    """The critical path of an average steady step, in seconds.

    Attributes:
        kinds: Its length, by what happens on it: `computing`, `transfer`.
        ranks: How long ranks compute on it, those that do so longest.
        gains: What would make steps shorter, the greatest gain first.
    """

    kinds: dict[str, float]
    ranks: dict[int, float]
    gains: tuple[Gain, ...]


# --- incidents --------------------------------------------------------------------------------------------------------
# The name of a run's incident, and the ids of the spans that report it.


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
