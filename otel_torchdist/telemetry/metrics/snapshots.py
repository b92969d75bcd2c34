"""Snapshots of ranks and nodes, from which `definitions` builds series."""

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
    """A measured duration, for histograms of listeners.

    Attributes:
        metric: Name of the histogram, such as `semconv.STEP_DURATION`.
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
        entered: Number of times that the rank entered it.
        message_bytes: Bytes contributed by the rank.
        in_flight: Number of operations in flight.
        oldest_age_s: Age of the oldest operation in flight; see `RankMetrics` for its start.
        sizes: Operations with an end known from the call, the wait or a device event, by message size class.
        values: The newest statistics of its inputs; None without any.
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
        """Number of operations with a known duration."""
        return sum(timed.durations.count for timed in self.sizes.values())

    @property
    def timed_s(self) -> float:
        """Sum of the known durations in seconds."""
        return sum(timed.durations.sum_s for timed in self.sizes.values())


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One group on one rank.

    Attributes:
        group: Label of the group.
        info: Its description and size.
        aligned: Whether its sequence numbers are comparable between ranks.
        started_sequence: Sequence number of the last entered collective; None before the first, or if not aligned.
        completed_sequence: Sequence number of the last collective known to have ended successfully; None without one.
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
        operations: Its operations, by group and operation.
        groups: The groups that it has used, in order of first use.
        steps: Durations of its steps.
        communicating_s: Time with at least one operation in flight.
        blocked_s: Time with at least one thread blocked in a call or wait.
        overhead_s: Time spent in our code on its threads.
        records_lost: Records that were not written or not read.
        names_dropped: Names that did not fit in its dictionary.
        totals: Totals of its operations.
        groups_folded: Number of groups without separate series, counted under `other`.
        kernel: The recording kernel.
        torch: Version of its torch; '' if unknown.
        job: Its job; `UNKNOWN_JOB` if not described.
        gpu: UUID of its GPU, '' for no GPU; None if its machine is not monitored.
        checkpoints: Counts of its checkpoints, by operation and stage.
        saved_age_s: Seconds since its last successful save; None before the first.
        save_interval_s: Longest of the newest intervals between its saves; 0 without any.
        figures: Figures of its steps, from its tape.
        calls: Durations of its remote procedure calls, by metric and labels.
        idle_s: Seconds since it last entered or left an operation, or ended a step.
        is_switched_off: Whether recording was switched off in it.
        recording_level: How much less than everything it records; see `RecordingLevel`.
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
    is_switched_off: bool = False
    recording_level: int = 0


@dataclass(frozen=True, slots=True)
class ShownVerdict:
    """The verdict on a run, the end of its attempt, or a finding, as labels.

    Attributes:
        text: A finding's sentence, for pages.
        coverage: Number of members of the stalled group that report, such as `3/4`.
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
        kinds: Length of the path, by kind of work.
        ranks: Time that each rank computes on the path.
        gains: Upper bounds on the time that a step would save, by cause, ranks and operation, as labels.
    """

    kinds: Mapping[str, float]
    ranks: Mapping[int, float]
    gains: Mapping[tuple[str, str, str], float]


@dataclass(slots=True)
class ArrivalCounts:
    """The last arrivals in the compared calls of a group.

    Attributes:
        calls: Number of compared calls.
        waited_s: Seconds that ranks waited for the last rank, averaged over the ranks.
        last: Number of calls at which the rank arrived last, by rank.
        late_s: Seconds that all other ranks waited only for this rank, by rank.
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
    """The numbers of a run on the whole node, including forgotten ranks.

    Attributes:
        timed: Timed operations, by labels of group, operation and message size.
        steps: Durations of steps, of all ranks.
        groups: The groups of the node's ranks, by label.
        stall: The run's incident; None without one.
        stalled_groups: Groups with a present or past incident.
        findings: Current findings that are not stalls.
        arrivals: The last arrivals, by label of the group.
        path: Its critical path; None if unknown on this node.
        calls: Durations of remote procedure calls, by metric and labels.
        end: The end of its attempt; None while it runs.
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
    """The times of one rank: a part of `RankSnapshot` that is cheap to read.

    Attributes:
        communicating_ns: Time with at least one operation in flight.
        blocked_ns: Time with at least one thread blocked in a call or wait.
        overhead_ns: Time spent in our code on its threads.
        records_lost: Records that were not written or not read.
    """

    communicating_ns: int
    blocked_ns: int
    overhead_ns: int
    records_lost: int


@dataclass(frozen=True, slots=True)
class RunFindings:
    """Findings of a run that are not stalls, and its last arrivals.

    Attributes:
        findings: Current findings.
        arrivals: The last arrivals, by label of the group.
    """

    findings: tuple[ShownVerdict, ...] = ()
    arrivals: Mapping[str, ArrivalCounts] = field(default_factory=dict[str, ArrivalCounts])


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """All ranks of a node, unique by run and rank, and their runs by label.

    Attributes:
        host: Name of the node; '' if its machine is not monitored.
    """

    ranks: tuple[RankSnapshot, ...]
    runs: Mapping[str, RunSnapshot]
    spans_dropped: int
    archive_dropped: int | None = None
    host: str = ""


Listener: TypeAlias = Callable[[Sequence[Duration]], None]


class DurationListeners:
    """Listeners for individual durations. Falsy without listeners, so that callers need not collect durations."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Listener) -> None:
        """Pass durations to `listener` from now on."""
        self._listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        """Undo `add`."""
        self._listeners = tuple(kept for kept in self._listeners if kept != listener)

    def publish(self, durations: Sequence[Duration]) -> None:
        """Pass durations to all listeners, on this thread."""
        for listener in self._listeners:
            listener(durations)


@dataclass(frozen=True, slots=True)
class VerdictStatus:
    """The incident of a run, or the end of its attempt, for the metrics.

    Attributes:
        run_id: The run.
        group_key: `GroupName.key` of the group whose operation stalls; '' if unknown.
        operation: The stalled operation.
        verdict: The verdict's name; also `finished` or `ended` for the end of an attempt.
        ranks: Global ranks named in the verdict.
        trace_id: Trace of the incident.
        coverage: Number of members of a stalled group that report, such as `3/4`.
    """

    run_id: int
    group_key: str
    operation: str
    verdict: str
    ranks: tuple[int, ...]
    trace_id: int
    coverage: str = ""
