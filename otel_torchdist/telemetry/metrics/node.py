"""The metrics of a node: its ranks, stalls and findings."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from otel_torchdist.model.reports.finding import Finding, FindingOver
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.node.job.description import UNKNOWN_JOB, JobDescription
from otel_torchdist.node.job.description_file import read_description
from otel_torchdist.node.machine.reader import MachineReading
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.metrics.durations import DurationHistogram, TimedMessages
from otel_torchdist.telemetry.metrics.labels import RunIdentity, RunLabels, SeriesLabels, label_value
from otel_torchdist.telemetry.metrics.rank_metrics import RankMetrics
from otel_torchdist.telemetry.metrics.snapshots import (
    ArrivalCounts,
    DurationListeners,
    GroupInfo,
    Listener,
    NodeSnapshot,
    PathSnapshot,
    RankSnapshot,
    RankTimes,
    RunFindings,
    RunSnapshot,
    ShownVerdict,
    VerdictStatus,
)
from otel_torchdist.telemetry.semconv import OTHER

MAX_FINDINGS: Final = 64
"""Upper bound on the findings of a run. The newest are kept."""


@dataclass(slots=True)
class _Run:
    """State of a run: verdicts, and sums over the ranks that were removed with `forget`."""

    timed: dict[tuple[str, str, str], TimedMessages] = field(default_factory=dict[tuple[str, str, str], TimedMessages])
    steps: DurationHistogram = field(default_factory=DurationHistogram)
    groups: dict[str, GroupInfo] = field(default_factory=dict[str, GroupInfo])
    stall: ShownVerdict | None = None
    stalled_groups: frozenset[str] = frozenset()
    findings: tuple[ShownVerdict, ...] = ()
    arrivals: dict[str, ArrivalCounts] = field(default_factory=dict[str, ArrivalCounts])
    path: PathSnapshot | None = None
    calls: dict[tuple[str, tuple[str, str, str]], DurationHistogram] = field(
        default_factory=dict[tuple[str, tuple[str, str, str]], DurationHistogram]
    )
    end: ShownVerdict | None = None

    def copy(self) -> _Run:
        timed = {labels: messages.copy() for labels, messages in self.timed.items()}
        arrivals = {group: counts.copy() for group, counts in self.arrivals.items()}
        return _Run(
            timed,
            self.steps.copy(),
            dict(self.groups),
            self.stall,
            self.stalled_groups,
            self.findings,
            arrivals,
            self.path,
            {series: durations.copy() for series, durations in self.calls.items()},
            self.end,
        )

    @property
    def is_kept(self) -> bool:
        """Whether the run is shown even without ranks."""
        return self.stall is not None or self.end is not None

    def add(self, rank: RankSnapshot) -> None:
        self.steps.add(rank.steps)
        for operation in rank.operations:
            for size, timed in operation.sizes.items():
                self.timed.setdefault((operation.group, operation.operation, size), TimedMessages()).add(timed)
        for series, durations in rank.calls.items():
            self.calls.setdefault(series, DurationHistogram()).add(durations)
        for group in rank.groups:
            self.groups.setdefault(group.group, group.info)


class NodeMetrics:
    """The ranks of a node, for metrics exporters.

    All methods except `snapshot` belong to the reader's thread. Forgetting a rank does not decrease the sums of its
    run, until the run's last rank is forgotten.
    """

    def __init__(
        self,
        spans_dropped: Callable[[], int] = lambda: 0,
        clock: Callable[[], int] = time.monotonic_ns,
        archive_dropped: Callable[[], int | None] = lambda: None,
        machine: Callable[[], MachineReading | None] = lambda: None,
    ) -> None:
        """Start without ranks.

        Args:
            spans_dropped: Returns the number of spans that could not be exported.
            clock: The node's monotonic clock in nanoseconds, shared by its tapes.
            archive_dropped: Returns the number of operations that could not be archived; None without an archive.
            machine: Returns the newest reading of the machine; None if the machine is not monitored.
        """
        self._spans_dropped = spans_dropped
        self._clock = clock
        self._archive_dropped = archive_dropped
        self._machine = machine
        self._jobs: dict[int, JobDescription] = {}
        self._labels_of_jobs: dict[Path, SeriesLabels] = {}
        self._labels_of_no_job = SeriesLabels()
        self._run_labels = RunLabels()
        self._lock = threading.Lock()
        self._ranks: dict[int, RankMetrics] = {}
        self._runs: dict[str, _Run] = {}
        self._listeners = DurationListeners()

    def track(self, tape: TapeReader) -> RankMetrics:
        """Start showing the rank of a tape. Pass its batches to the returned object."""
        directory = tape.path.parent
        labels = self._labels_of_jobs.setdefault(directory, SeriesLabels())
        rank = RankMetrics(tape, labels, self._listeners, functools.partial(self._label_of, tape.owner, directory))
        with self._lock:
            self._ranks[tape.identity.nonce] = rank
        return rank

    def forget(self, nonce: int) -> None:
        """Stop showing the rank of the tape with this nonce. The last rank removes its run."""
        rank = self._ranks.get(nonce)
        if rank is None:
            return
        rank.retire()
        with self._lock:  # otherwise a scrape could miss the rank's numbers: removed, but not added to the sums yet
            del self._ranks[nonce]
            last = rank.snapshot(self._clock())
            if last is not None:
                self._runs.setdefault(last.run, _Run()).add(last)
            present = {snapshot.run for snapshot in self._snapshot_ranks()}
            self._runs = {label: run for label, run in self._runs.items() if label in present or run.is_kept}
            self._release()

    def _label_of(self, user: int, directory: Path, run_id: int) -> str:
        return self._run_labels.of(RunIdentity(run_id, user, "" if run_id else str(directory)))

    def _release(self) -> None:
        """Release unused labels: an agent that runs for months sees many jobs."""
        shown = {rank.run.shown for rank in self._ranks.values() if rank.run.shown is not None}
        self._run_labels.keep(shown | self._runs.keys())
        jobs = {id(rank.labels) for rank in self._ranks.values()}
        self._labels_of_jobs = {job: labels for job, labels in self._labels_of_jobs.items() if id(labels) in jobs}

    def _group_label(self, run: str, key: str) -> str:
        """Return the label of a group among the ranks of a run."""
        if not key:
            return OTHER
        jobs = (rank.labels for rank in self._ranks.values() if rank.run.shown == run)
        return next(jobs, self._labels_of_no_job).group(key)

    def set_stall(self, status: VerdictStatus) -> None:
        """Show the incident of a run immediately, instead of its previous incident."""
        label = self._run_labels.of_run(status.run_id)
        group = self._group_label(label, status.group_key)
        snapshot = ShownVerdict(
            group=group,
            operation=label_value(status.operation),
            verdict=label_value(status.verdict),
            ranks=compress_ranks(status.ranks),
            coverage=label_value(status.coverage),
            trace_id=f"{status.trace_id:032x}",
        )
        with self._lock:
            run = self._runs.setdefault(label, _Run())
            run.stall = snapshot
            run.stalled_groups |= {group}

    def clear_stall(self, run_id: int) -> None:
        """Mark the run's incident as over. The series of its group stays, at 0, so that an alert sees the end."""
        with self._lock:
            run = self._runs.get(self._run_labels.of_run(run_id))
            if run is not None:
                run.stall = None

    def set_end(self, status: VerdictStatus) -> None:
        """Show the end of a run's attempt."""
        label = self._run_labels.of_run(status.run_id)
        snapshot = ShownVerdict(
            group=self._group_label(label, status.group_key) if status.group_key else "",
            operation=label_value(status.operation) if status.operation else "",
            verdict=label_value(status.verdict),
            ranks=compress_ranks(status.ranks),
            trace_id=f"{status.trace_id:032x}" if status.trace_id else "",
        )
        with self._lock:
            self._runs.setdefault(label, _Run()).end = snapshot

    def clear_end(self, run_id: int) -> None:
        """Stop showing the end of a run's attempt. A run without ranks is removed."""
        label = self._run_labels.of_run(run_id)
        with self._lock:
            run = self._runs.get(label)
            if run is not None:
                run.end = None
                if not run.is_kept and label not in {rank.run for rank in self._snapshot_ranks()}:
                    del self._runs[label]
                self._release()

    def add_finding(self, finding: Finding) -> None:
        """Show a finding that is not a stall, in addition to earlier ones."""
        label = self._run_labels.of_run(finding.run)
        snapshot = ShownVerdict(
            group=self._group_label(label, finding.group),
            operation=label_value(finding.operation),
            verdict=label_value(finding.kind.value),
            ranks=compress_ranks(finding.ranks),
            trace_id=f"{finding.incident.trace_id:032x}",
            text=finding.sentence,
        )
        with self._lock:
            run = self._runs.setdefault(label, _Run())
            run.findings = (*run.findings[1 - MAX_FINDINGS :], snapshot)

    def drop_finding(self, over: FindingOver) -> None:
        """Remove a finding that no longer holds."""
        label = self._run_labels.of_run(over.run)
        key = (self._group_label(label, over.group), over.kind.value, compress_ranks(over.ranks))
        with self._lock:
            run = self._runs.get(label)
            if run is not None:
                run.findings = tuple(
                    finding for finding in run.findings if (finding.group, finding.verdict, finding.ranks) != key
                )

    def add_arrivals(self, run_id: int, group_key: str, added: ArrivalCounts) -> None:
        """Add counts of the ranks that arrived last."""
        label = self._run_labels.of_run(run_id)
        group = self._group_label(label, group_key)
        with self._lock:
            counts = self._runs.setdefault(label, _Run()).arrivals.setdefault(group, ArrivalCounts())
            counts.calls += added.calls
            counts.waited_s += added.waited_s
            counts.last.update(added.last)
            for rank, seconds in added.late_s.items():
                counts.late_s[rank] = counts.late_s.get(rank, 0.0) + seconds

    def set_path(self, run_id: int, path: PathSnapshot | None) -> None:
        """Show the critical path of a run, instead of its previous path; None if this node no longer knows it."""
        label = self._run_labels.of_run(run_id)
        with self._lock:
            self._runs.setdefault(label, _Run()).path = path

    def listen(self, listener: Listener) -> None:
        """Also pass every duration from now on to `listener`, on the reader's thread."""
        self._listeners.add(listener)

    def ignore(self, listener: Listener) -> None:
        """Undo `listen`."""
        self._listeners.remove(listener)

    def snapshot(self) -> NodeSnapshot:
        """Return the current state of the node. Callable from any thread."""
        with self._lock:
            snapshots = self._snapshots()
            runs = {label: run.copy() for label, run in self._runs.items()}
        machine = self._machine()
        gpus: Mapping[int, str] = machine.gpus if machine is not None else {}
        ranks = [replace(rank, job=self._job_of(tape), gpu=gpus.get(tape.identity.nonce)) for tape, rank in snapshots]
        present = {tape.identity.nonce for tape, _ in snapshots}
        self._jobs = {nonce: job for nonce, job in self._jobs.items() if nonce in present}
        for rank in ranks:
            runs.setdefault(rank.run, _Run()).add(rank)
        return NodeSnapshot(
            # Two series with the same labels would break a scrape, so only the newer tape of a rank is shown.
            ranks=tuple({(rank.run, rank.rank): rank for rank in ranks}.values()),
            runs={
                label: RunSnapshot(
                    run.timed,
                    run.steps,
                    run.groups,
                    run.stall,
                    run.stalled_groups,
                    run.findings,
                    run.arrivals,
                    run.path,
                    run.calls,
                    run.end,
                )
                for label, run in runs.items()
            },
            spans_dropped=self._spans_dropped(),
            archive_dropped=self._archive_dropped(),
            host=machine.host if machine is not None else "",
        )

    def _job_of(self, tape: TapeReader) -> JobDescription:
        """Return the job of a rank; `UNKNOWN_JOB` until the rank has written its description, soon after its start."""
        nonce = tape.identity.nonce
        if nonce not in self._jobs:
            description = read_description(tape.path, tape.owner)
            if description is None:
                return UNKNOWN_JOB
            self._jobs[nonce] = description.job
        return self._jobs[nonce]

    @property
    def spans_dropped(self) -> int:
        """Spans that could not be exported so far."""
        return self._spans_dropped()

    def times(self) -> dict[int, RankTimes]:
        """Return the times of each rank by the nonce of its tape. Much cheaper than `snapshot`."""
        with self._lock:
            return {nonce: rank.times for nonce, rank in self._ranks.items()}

    def findings(self, run_id: int) -> RunFindings:
        """Return the findings of a run, without stalls."""
        with self._lock:
            run = self._runs.get(self._run_labels.of_run(run_id))
            if run is None:
                return RunFindings()
            return RunFindings(run.findings, {group: counts.copy() for group, counts in run.arrivals.items()})

    def _snapshot_ranks(self) -> list[RankSnapshot]:
        return [snapshot for _, snapshot in self._snapshots()]

    def _snapshots(self) -> list[tuple[TapeReader, RankSnapshot]]:
        now_ns = self._clock()
        snapshots = ((rank.tape, rank.snapshot(now_ns)) for rank in self._ranks.values())
        return [(tape, snapshot) for tape, snapshot in snapshots if snapshot is not None]
