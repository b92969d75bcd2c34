"""Findings: problems in a run that do not stall it. All outputs render the same `Finding`."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.reports.incident import Incident
from otel_torchdist.model.snapshot import WorldSnapshot

# --- kinds ------------------------------------------------------------------------------------------------------------
# Each kind has a row here and a detector in `judge/stall/findings`.


NEXT: Final = "next:"
"""The label of the step to take, in texts of verdicts and findings."""


def split_next_step(text: str) -> tuple[str, str]:
    """Split the text of a verdict or finding into its description and the step to take; '' if it names none."""
    description, _, step = text.partition(f". {NEXT} ")
    return description, step


class FindingKind(enum.Enum):
    """The kinds of findings. The value is the verdict in spans, log events, metrics and `--json`.

    Attributes:
        meaning: The clause in the help text of the findings metric.
        next_step: The step to take, for people.
    """

    _value_: str
    meaning: str
    next_step: str

    def __new__(cls, value: str, meaning: str, next_step: str) -> FindingKind:
        """Create a kind from its row."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.meaning = meaning
        kind.next_step = next_step
        return kind

    def with_next_step(self, text: str) -> str:
        """Return the text of a finding with the step to take."""
        return f"{text}. {NEXT} {self.next_step}"

    MISMATCHED = (
        "mismatched",
        "ranks made calls that do not match",
        "compare these calls: all ranks must create the same groups, and make the same calls, in the same order",
    )
    STRAGGLER = (
        "straggler",
        "a rank that repeatedly arrives last",
        "compare its data, node and GPU clocks with the others'; `otel-torchdist profile --rank` shows its threads",
    )
    SLOW_RANK = (
        "slow_rank",
        "a rank that makes steps notably longer",
        "see with `otel-torchdist analyze --only path` what it computes, and compare its GPU clocks with the others'",
    )
    SLOW_NODE = (
        "slow_node",
        "a node that makes steps notably longer",
        "check the clocks, the memory and the other jobs of that node, or leave it out",
    )
    SLOW_STAGE = (
        "slow_stage",
        "a pipeline stage that makes steps notably longer",
        "move layers from that stage to the others",
    )
    NON_FINITE = (
        "non_finite",
        "the first ranks with an input that is infinite or not a number",
        "look at the batch and the loss of these ranks in that step, and go back to a checkpoint from before it",
    )
    DIVERGED = (
        "diverged",
        "ranks have different results or parameters that must be equal",
        "compare the seeds, the code and the machine of these ranks, and go back to a checkpoint from before that step",
    )
    CHECKPOINT_FAILED = (
        "checkpoint_failed",
        "a checkpoint could not be saved, because an exception was raised on these ranks",
        "remove the cause of the exception before the job ends: the last good checkpoint is an older one",
    )
    SHARED_GROUP = (
        "shared_group",
        "two threads of a rank use one group at the same time",
        "give one of the two threads a group of its own (new_group)",
    )
    STARVED = (
        "starved",
        "all threads that serve remote procedure calls wait in calls of their own",
        "raise num_worker_threads, or use async_execution",
    )
    FROZEN = (
        "frozen",
        "a process that should run remote procedure calls does not run",
        "find out who stopped that process, and let it continue (`kill -CONT`)",
    )
    DEAD = (
        "dead",
        "a process that serves remote procedure calls is gone, while others continue",
        "read the log of that process, and restart the job: all further calls to it fail",
    )
    IDLE = (
        "idle",
        "no rank has called an operation for a long time, and all ranks are idle",
        "find out what the ranks wait for at these lines; `otel-torchdist diagnose` prints their stacks",
    )


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
        text: The finding in words, without the step to take.
        world: The snapshot that shows the finding.
        attributes: Span attributes besides run, verdict and ranks, by their names in `semconv`.
    """

    kind: FindingKind
    severity: Severity
    incident: Incident
    ranks: tuple[int, ...]
    group: str
    operation: str
    text: str
    world: WorldSnapshot
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict[str, AttributeValue])

    @property
    def sentence(self) -> str:
        """The finding in words, with the step to take."""
        return self.kind.with_next_step(self.text)

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
    """A snapshot of a run, with the ids that identify its incidents.

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
        steps: Number of analyzed steps.
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
    """An upper bound on the time that a step would save without one cause.

    Attributes:
        cause: The kind of cause: `line`, `rank`, `node`, `stage` or `transfer`.
        ranks: The ranks concerned; empty for a transfer.
        operation: The operation that the ranks reach late, or whose transfer takes long; '' if there are several.
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
