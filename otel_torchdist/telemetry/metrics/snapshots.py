"""The numbers of a rank and of a node at one moment, of which `definitions` makes series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from otel_torchdist.model.kinds import Kernel
from otel_torchdist.model.numerics import Numerics
from otel_torchdist.node.job.description import UNKNOWN_JOB, JobDescription
from otel_torchdist.tape.figures import NO_FIGURES, StepFigures
from otel_torchdist.telemetry.metrics.counts import CheckpointCounts, RankCounts
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, TimedMessages


class Duration(NamedTuple):
    """One measured duration, for histograms that are kept elsewhere.

    Attributes:
        metric: `semconv.OPERATION_DURATION` or `semconv.STEP_DURATION`.
        labels: Values of the metric's labels, in order.
        seconds: The duration.
    """

    metric: str
    labels: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Description and size of a group."""

    description: str
    size: int


@dataclass(frozen=True, slots=True)
class OperationSnapshot:
    """One operation of one group on one rank.

    Attributes:
        group: Label of the group.
        operation: Label of the operation.
        entered: How often the rank entered it.
        message_bytes: Bytes that the rank contributed.
        in_flight: Operations that have not ended.
        oldest_age_s: Age of the oldest of them; see `RankMetrics` for those that have none.
        sizes: Operations whose end is known from the call, the wait or an event on the device, by message size class.
        values: The newest statistics of its inputs; None if there are none.
    """

    group: str
    operation: str
    entered: int
    message_bytes: int
    in_flight: int
    oldest_age_s: float
    sizes: Mapping[str, TimedMessages]
    values: Numerics | None = None

    @property
    def timed(self) -> int:
        """Operations whose duration is known."""
        return sum(one.durations.count for one in self.sizes.values())

    @property
    def timed_s(self) -> float:
        """Sum of these durations in seconds."""
        return sum(one.durations.sum_s for one in self.sizes.values())


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group on one rank.

    Attributes:
        group: Its label.
        info: Its description and size.
        aligned: Whether its sequence numbers are comparable across ranks.
        started_sequence: Its newest collective that the rank has entered; None before the first, and if sequence
            numbers are not comparable across ranks.
        completed_sequence: Its newest collective that is known to have ended well; None if there is none.
    """

    group: str
    info: GroupInfo
    aligned: bool
    started_sequence: int | None
    completed_sequence: int | None


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    """One rank.

    Attributes:
        run: Label of the run.
        rank: Global rank.
        up: Whether it is alive and has not failed; None after it has finished normally.
        operations: What it did, by group and operation.
        groups: The groups that it has used, in the order of first use.
        steps: Durations of its steps.
        communicating_s: Time with an operation in flight.
        blocked_s: Time with a thread blocked in a call or wait.
        overhead_s: Time that our own code took on its threads.
        records_lost: Records that were not written or not read.
        names_dropped: Names that did not fit into its dictionary.
        totals: Counts of its operations as a whole.
        groups_folded: Groups that are counted under `other`.
        kernel: What records its calls.
        torch: Version of its torch; '' if it is not known.
        job: Its job, as far as it describes that.
        gpu: UUID of its GPU, '' if it has none; None if its machine is not read.
        checkpoints: Counts of its checkpoints, by operation and stage.
        saved_age_s: Seconds since its last save has ended well; None before the first.
        save_interval_s: The longest of the newest intervals between its saves; 0 if there is none.
        figures: What it has counted itself.
        calls: Durations of its remote procedure calls, by metric and labels.
        idle_s: Seconds since it last entered or left an operation, or ended a step.
    """

    run: str
    rank: int
    up: bool | None
    operations: tuple[OperationSnapshot, ...]
    groups: tuple[GroupSnapshot, ...]
    steps: DurationHistogram
    communicating_s: float
    blocked_s: float
    overhead_s: float
    records_lost: int
    names_dropped: int
    totals: RankCounts
    groups_folded: int
    kernel: Kernel = Kernel.UNKNOWN
    torch: str = ""
    job: JobDescription = UNKNOWN_JOB
    gpu: str | None = None
    checkpoints: tuple[CheckpointCounts, ...] = ()
    saved_age_s: float | None = None
    save_interval_s: float = 0.0
    figures: StepFigures = NO_FIGURES
    calls: Mapping[tuple[str, tuple[str, str, str]], DurationHistogram] = field(
        default_factory=dict[tuple[str, tuple[str, str, str]], DurationHistogram]
    )
    idle_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """A run's verdict, how its attempt has ended, or a finding, as labels.

    Attributes:
        text: A finding's sentence, for pages.
        coverage: How many members of the stalled group report.
    """

    group: str
    operation: str
    verdict: str
    ranks: str
    trace_id: str
    text: str = ""
    coverage: str = ""


@dataclass(frozen=True, slots=True)
class PathSnapshot:
    """The critical path of a run's newest steps, in seconds of an average step.

    Attributes:
        kinds: Its length, by what happens on it.
        ranks: How long ranks compute on it.
        gains: What a step would be shorter at most, by kind of cause, ranks and operation, as labels.
    """

    kinds: Mapping[str, float]
    ranks: Mapping[int, float]
    gains: Mapping[tuple[str, str, str], float]


@dataclass(slots=True)
class ArrivalCounts:
    """The ranks that came last in the compared calls of a group.

    Attributes:
        calls: Number of compared calls.
        waited_s: Seconds for which a rank waited in these for the last one, on average.
        last: By rank, in how many of them it came last.
        late_s: By rank, seconds for which the others waited for it alone.
    """

    calls: int = 0
    waited_s: float = 0.0
    last: Counter[int] = field(default_factory=Counter[int])
    late_s: dict[int, float] = field(default_factory=dict[int, float])

    def copy(self) -> ArrivalCounts:
        """Return an independent copy."""
        return ArrivalCounts(self.calls, self.waited_s, self.last.copy(), dict(self.late_s))


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """The numbers of a run for the whole node, including those of ranks that have been forgotten since.

    Attributes:
        timed: Timed operations, by labels of group, operation and message size.
        steps: Durations of steps, of all ranks.
        groups: The groups of the node's ranks, by label.
        stall: The run's incident, if there is one.
        stalled_groups: Groups that have had an incident.
        findings: Findings that are not stalls and still hold.
        arrivals: Which ranks came last, by label of the group.
        path: Its critical path; None if it is not known here.
        calls: Durations of remote procedure calls, by metric and labels.
        end: How it has ended; None while it runs.
    """

    timed: Mapping[tuple[str, str, str], TimedMessages]
    steps: DurationHistogram
    groups: Mapping[str, GroupInfo]
    stall: ShownVerdict | None
    stalled_groups: frozenset[str]
    findings: tuple[ShownVerdict, ...] = ()
    arrivals: Mapping[str, ArrivalCounts] = field(default_factory=dict[str, ArrivalCounts])
    path: PathSnapshot | None = None
    calls: Mapping[tuple[str, tuple[str, str, str]], DurationHistogram] = field(
        default_factory=dict[tuple[str, tuple[str, str, str]], DurationHistogram]
    )
    end: ShownVerdict | None = None


class RankTimes(NamedTuple):
    """The times of one rank, a part of `RankSnapshot` that takes no copies.

    Attributes:
        communicating_ns: Time with an operation in flight.
        blocked_ns: Time with a thread blocked in a call or wait.
        overhead_ns: Time that our own code took on its threads.
        records_lost: Records that were not written or not read.
    """

    communicating_ns: int
    blocked_ns: int
    overhead_ns: int
    records_lost: int


@dataclass(frozen=True, slots=True)
class RunFindings:
    """Findings of a run besides stalls, and the ranks that came last.

    Attributes:
        findings: Findings that still hold.
        arrivals: Which ranks came last, by label of the group.
    """

    findings: tuple[ShownVerdict, ...] = ()
    arrivals: Mapping[str, ArrivalCounts] = field(default_factory=dict[str, ArrivalCounts])


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """All ranks of a node, no two with the same run and rank, and their runs by label.

    Attributes:
        host: Name of the node; '' if its machine is not read.
    """

    ranks: tuple[RankSnapshot, ...]
    runs: Mapping[str, RunSnapshot]
    spans_dropped: int
    archive_dropped: int | None = None
    host: str = ""


Listener: TypeAlias = Callable[[Sequence[Duration]], None]


class DurationListeners:
    """Receivers of individual durations, in addition to the histograms; falsy if there are none, to save the work."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Listener) -> None:
        """Also pass durations to `listener`, from now on."""
        self._listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        """Undo `add`."""
        self._listeners = tuple(one for one in self._listeners if one != listener)

    def publish(self, durations: Sequence[Duration]) -> None:
        """Pass durations to all listeners, on this thread."""
        for listener in self._listeners:
            listener(durations)


@dataclass(frozen=True, slots=True)
class VerdictStatus:
    """The one incident of a run, or how its attempt has ended, as a reader reports it to the metrics.

    Attributes:
        run_id: The run.
        group_key: `GroupName.key` of the group whose operation stalls; '' if it is not known.
        operation: That operation.
        verdict: The verdict's name; also `finished` or `ended` for the end of an attempt.
        ranks: Global ranks that the verdict names.
        trace_id: Trace of the incident.
        coverage: How many members of a stalled group reported, such as `3/4`.
    """

    run_id: int
    group_key: str
    operation: str
    verdict: str
    ranks: tuple[int, ...]
    trace_id: int
    coverage: str = ""
