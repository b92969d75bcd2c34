"""Shows stalls, findings and the ends of attempts in the metrics, and notes concluded attempts for the launcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.judge.stall.events import (
    Event,
    IncidentHandedOver,
    IncidentResolved,
    MarkerDue,
    RecordingSwitchedOff,
    Ruling,
    RunSeen,
    StacksOverdue,
    StacksWanted,
    TimeoutShort,
    VerdictGiven,
)
from otel_torchdist.judge.stall.findings.slow import PathMeasured
from otel_torchdist.judge.stall.findings.stragglers import ArrivalsCompared, Lateness
from otel_torchdist.judge.stall.incidents.incident import run_of
from otel_torchdist.judge.verdict.verdict import Outcome, Verdict
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.reports.finding import Finding, FindingOver, PathLengths
from otel_torchdist.model.snapshot import WorldSnapshot, life_in
from otel_torchdist.model.text import compress_ranks, listed_ranks
from otel_torchdist.node.job.agent_notes import note_concluded
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry import semconv
from otel_torchdist.telemetry.metrics.labels import label_value
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import ArrivalCounts, PathSnapshot, VerdictStatus

# --- stalls and findings ----------------------------------------------------------------------------------------------
# Shows stalls and findings in the metrics.


def show(event: Event, metrics: NodeMetrics) -> None:
    """Show a stall, a finding or a measurement in the metrics; remove it when it is over."""
    match event:
        case VerdictGiven():
            metrics.set_stall(_status_of(event))
        case IncidentResolved() | IncidentHandedOver():
            metrics.clear_stall(event.incident.run)
        case Finding():
            metrics.add_finding(event)
        case FindingOver():
            metrics.drop_finding(event)
        case ArrivalsCompared():
            for lateness in event.lateness:
                metrics.add_arrivals(event.run, lateness.group, _counts_of(lateness))
        case PathMeasured():
            metrics.set_path(event.run, _path_of(event.lengths))
        case MarkerDue() | TimeoutShort() | RecordingSwitchedOff() | StacksWanted() | StacksOverdue():
            pass


def _status_of(event: VerdictGiven) -> VerdictStatus:
    verdict = event.verdict
    return VerdictStatus(
        run_id=event.incident.run,
        group_key=verdict.operation_id.channel.group,
        operation=verdict.operation,
        verdict=verdict.kind.value,
        ranks=tuple(sorted(verdict.ranks)),
        coverage=f"{verdict.reporting}/{verdict.members}",
        trace_id=event.incident.trace_id,
    )


def _counts_of(lateness: Lateness) -> ArrivalCounts:
    late_s = {rank: late_ns / 1e9 for rank, late_ns in lateness.late_ns.items()}
    return ArrivalCounts(lateness.calls, lateness.waited_ns / 1e9, Counter(lateness.last), late_s)


def _path_of(lengths: PathLengths) -> PathSnapshot:
    gains: dict[tuple[str, str, str], float] = {}
    for gain in lengths.gains:  # greatest first; two causes of a rank may have the same labels, at different lines
        gains.setdefault((gain.cause, compress_ranks(gain.ranks), label_value(gain.operation)), gain.seconds)
    return PathSnapshot(lengths.kinds, lengths.ranks, gains)


# --- ends of attempts -------------------------------------------------------------------------------------------------
# Shows the end of each job's last attempt in the metrics, until the next attempt makes a step.
# A crash resolves a stall at once: without this, the stall could be over before the next scrape.


@dataclass(frozen=True, slots=True)
class _End:
    """The end of an attempt that is shown for a job directory.

    Attributes:
        status: The verdict, or the kind of end.
        step: Last step of the run.
        created_ns: Monotonic time at which the newest tape of the run was created.
    """

    status: VerdictStatus
    step: int
    created_ns: int


class AttemptEnds:
    """The ends of the last attempts of all jobs that a reader reads."""

    def __init__(self, metrics: NodeMetrics) -> None:
        """Show the ends in these metrics."""
        self._metrics = metrics
        self._verdicts: dict[int, VerdictStatus] = {}
        self._shown: dict[Path, _End] = {}

    def update(
        self,
        events: Iterable[Event],
        seen: Iterable[RunSeen],
        tapes: Mapping[int, TapeReader],
        is_verdict_pending: bool,
    ) -> bool:
        """Process one turn of the reader; return whether an attempt has ended in it.

        Args:
            events: Events of the turn.
            seen: The runs, as of this turn.
            tapes: The tapes being read, by nonce.
            is_verdict_pending: Whether a verdict on ranks that have ended is still pending.
        """
        before = dict(self._shown)
        runs = {run_of(run_seen.world): run_seen for run_seen in seen}
        for event in events:
            self._process(event, runs, tapes)
        for run, run_seen in runs.items():
            self._remember_ruling(run, run_seen)
        self._verdicts = {run: status for run, status in self._verdicts.items() if run in runs}
        for directory, worlds in _by_directory(runs, tapes).items():
            self._drop_if_stepping(directory, worlds)
            if not is_verdict_pending and all(is_gone(world) for world in worlds):
                self._note_end(directory, worlds, tapes)
        return any(before.get(directory) != end for directory, end in self._shown.items())

    def leave(self, directory: Path) -> None:
        """Forget a job directory that is no longer read."""
        shown = self._shown.pop(directory, None)
        if shown is not None:
            self._metrics.clear_end(shown.status.run_id)

    def _process(self, event: Event, runs: Mapping[int, RunSeen], tapes: Mapping[int, TapeReader]) -> None:
        if isinstance(event, VerdictGiven):
            self._verdicts[event.incident.run] = _end_status_of(
                event.verdict, event.incident.run, event.incident.trace_id
            )
        if not isinstance(event, IncidentResolved):
            return
        match event.outcome:
            case Outcome.COMPLETED:
                self._verdicts.pop(event.incident.run, None)
            case Outcome.FAILED | Outcome.RANKS_ENDED:
                status = self._verdicts.get(event.incident.run)
                directory = directory_of(event.world, tapes)
                if status is not None and directory is not None and event.incident.run in runs:
                    self._show(directory, status, event.world)
            case Outcome.OUT_OF_SIGHT:
                pass

    def _remember_ruling(self, run: int, seen: RunSeen) -> None:
        """Remember the ruling of another agent while it holds."""
        if seen.judge is None:
            return
        if seen.ruling is not None:
            self._verdicts[run] = _end_status_of_ruling(seen.ruling, run)
        elif not is_gone(seen.world):
            self._verdicts.pop(run, None)

    def _note_end(self, directory: Path, worlds: list[WorldSnapshot], tapes: Mapping[int, TapeReader]) -> None:
        """Show the end of the newest run of a job directory without live processes."""
        attempts = [world for world in worlds if not _is_of_helpers(world, tapes)]
        if not attempts:
            return
        world = max(attempts, key=created_ns)
        run, shown = run_of(world), self._shown.get(directory)
        if shown is not None and shown.created_ns > created_ns(world):
            return
        status = self._verdicts.get(run)
        if status is None:  # the run ended without a verdict, or its end is shown already
            if shown is not None and shown.status.run_id == run:
                return
            finished = all(life_in(view) is RankLife.FINISHED for view in world.ranks.values())
            status = VerdictStatus(run, "", "", semconv.FINISHED if finished else semconv.ENDED, (), 0)
        if shown is None or shown.status != status:
            self._show(directory, status, world)

    def _show(self, directory: Path, status: VerdictStatus, world: WorldSnapshot) -> None:
        self.leave(directory)
        self._shown[directory] = _End(status, _step(world), created_ns(world))
        self._metrics.set_end(status)

    def _drop_if_stepping(self, directory: Path, worlds: Iterable[WorldSnapshot]) -> None:
        """Forget the end when a later attempt makes a step, or when the same run continues after a handled error."""
        shown = self._shown.get(directory)
        if shown is None:
            return
        for world in worlds:
            is_same = run_of(world) == shown.status.run_id
            is_later = not is_same and created_ns(world) > shown.created_ns
            if (is_same and _step(world) > shown.step) or (is_later and _step(world) > 0):
                self.leave(directory)
                return


def _by_directory(runs: Mapping[int, RunSeen], tapes: Mapping[int, TapeReader]) -> dict[Path, list[WorldSnapshot]]:
    worlds: dict[Path, list[WorldSnapshot]] = {}
    for seen in runs.values():
        directory = directory_of(seen.world, tapes)
        if directory is not None and not seen.world.is_foreign:
            worlds.setdefault(directory, []).append(seen.world)
    return worlds


def directory_of(world: WorldSnapshot, tapes: Mapping[int, TapeReader]) -> Path | None:
    """Return the job directory with the tapes of a world; None if this reader reads none of them."""
    local = (tapes[view.nonce].path.parent for view in world.ranks.values() if view.nonce in tapes)
    return next(local, None)


def _is_of_helpers(world: WorldSnapshot, tapes: Mapping[int, TapeReader]) -> bool:
    return all(tapes[view.nonce].identity.parent for view in world.ranks.values() if view.nonce in tapes)


def is_gone(world: WorldSnapshot) -> bool:
    """Return whether the processes of all ranks on this node have ended."""
    return not any(view.alive for view in world.ranks.values() if not view.is_remote)


def created_ns(world: WorldSnapshot) -> int:
    """Return the monotonic time at which the newest tape of this node's ranks was created."""
    return max(view.created_ns for view in world.ranks.values() if not view.is_remote)


def _step(world: WorldSnapshot) -> int:
    return max(view.step for view in world.ranks.values() if not view.is_remote)


def _end_status_of(verdict: Verdict, run: int, trace_id: int) -> VerdictStatus:
    group, ranks = verdict.operation_id.channel.group, tuple(sorted(verdict.ranks))
    return VerdictStatus(run, group, verdict.operation, verdict.kind.value, ranks, trace_id)


def _end_status_of_ruling(ruling: Ruling, run: int) -> VerdictStatus:
    group, ranks = ruling.operation_id.channel.group, tuple(listed_ranks(ruling.ranks))
    return VerdictStatus(run, group, ruling.operation, ruling.verdict, ranks, ruling.incident.trace_id)


# --- concluded attempts -----------------------------------------------------------------------------------------------
# Notes in each job directory that an attempt is concluded, for the launcher that waits for that.


class Conclusions:
    """The concluded attempts: all ranks of the node have ended, and no verdict on them is pending."""

    def __init__(self) -> None:
        """Start without concluded attempts."""
        self._noted: dict[Path, int] = {}

    def update(self, seen: Iterable[RunSeen], tapes: Mapping[int, TapeReader], is_verdict_pending: bool) -> None:
        """Note newly concluded attempts. Call this after everything else of the turn has been reported.

        Args:
            seen: The runs, as of this turn.
            tapes: The tapes being read, by nonce.
            is_verdict_pending: Whether a verdict on ranks that have ended is still pending.
        """
        worlds_of: dict[Path, list[WorldSnapshot]] = {}
        for run_seen in seen:
            directory = directory_of(run_seen.world, tapes)
            if directory is not None:
                worlds_of.setdefault(directory, []).append(run_seen.world)
        for directory, worlds in worlds_of.items():
            newest_ns = max(map(created_ns, worlds))
            if is_verdict_pending or not all(map(is_gone, worlds)) or self._noted.get(directory) == newest_ns:
                continue
            self._noted[directory] = newest_ns
            owner = next(tape.owner for tape in tapes.values() if tape.path.parent == directory)
            note_concluded(directory, newest_ns, owner)

    def leave(self, directory: Path) -> None:
        """Forget a job directory that is no longer read."""
        self._noted.pop(directory, None)
