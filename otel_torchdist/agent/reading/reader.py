"""The reader: polls tapes, and feeds their records to spans, metrics and the stall watch.

It runs in a thread of the training process, where it exports the tape of its own rank, or in the agent process, where
it exports all tapes of a node. If several readers read the same tapes, only one of them watches for stalls.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from otel_torchdist import guard
from otel_torchdist.agent.limits import MemoryShares
from otel_torchdist.agent.reading.followed_rank import FollowedRank, LossLog, ReadingState
from otel_torchdist.agent.reading.outcomes import AttemptEnds, Conclusions, show
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.stall.events import Event, VerdictGiven
from otel_torchdist.judge.stall.reporting.attributes import Announcer
from otel_torchdist.judge.stall.reporting.reporter import StallReporter
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.reports.finding import Finding, FindingOver
from otel_torchdist.model.reports.incident import LinkTarget
from otel_torchdist.node.machine.reader import WatchedRank
from otel_torchdist.node.machine.watch import MachineWatch
from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.node.processes.endings import SilentEnds
from otel_torchdist.show.live.feed import LiveFeed
from otel_torchdist.sources.archive.tapes import TapeArchive
from otel_torchdist.sources.archive.writer import ArchiveWriter
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.export.environment import attributes_beyond_resource
from otel_torchdist.telemetry.export.outputs import Outputs
from otel_torchdist.telemetry.export.providers import PromptPush
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.otel import OTelMetrics
from otel_torchdist.telemetry.spans.sampling import StepSampler
from otel_torchdist.telemetry.spans.steps import RankSpans

SHOWN_AFTER_END_S: Final = 60.0
"""Seconds for which the series of a rank that has ended can still be scraped."""
FLUSH_S: Final = 5.0
ARCHIVE_FLUSH_S: Final = 2.0
SLOW_S: Final = 1.0
ENDING_S: Final = 1.0
"""Longest time that a process takes to end after the kernel has released its lock."""

_logger = logging.getLogger("otel_torchdist")


class Reader:
    """Reader of any number of tapes. Not thread-safe.

    Attributes:
        metrics: The metrics of all exported tapes, for `/metrics`.
        incidents: Verdicts given and incidents resolved in the last turn.
        failed: Tapes that could not be processed in the last turn, by nonce, with the error.
        shares: Memory taken by each user's tapes. Tapes of a user above the limit are not polled.
        slow_s: Reading time of a turn, in seconds, that would delay verdicts. After a slower turn, records are skipped
            on tapes that are far behind.
    """

    def __init__(
        self,
        outputs: Outputs,
        span_budget: int,
        watch: StallWatch,
        deaths: DeathWatch | None = None,
        archive: ArchiveWriter | None = None,
        live: LiveFeed | None = None,
        machine: MachineWatch | None = None,
        announcer: Announcer | None = None,
        shares: MemoryShares | None = None,
        docs_url: str = "",
    ) -> None:
        """Start without tapes.

        Args:
            outputs: Exporters; closed with the reader.
            span_budget: Spans per second and rank.
            watch: Watches for stalls; it follows no tapes yet.
            deaths: See `StallWatch`.
            archive: Writes an archive; None for no archive. Closed with the reader.
            live: Receives the data of the live page; None if there is no page.
            machine: Watches the machine; None if it is not watched. Its creator stops it.
            announcer: See `StallReporter`.
            shares: Memory limit for each user's tapes; None for the default.
            docs_url: See `StallReporter`.
        """
        self._outputs = outputs
        self._archive = archive
        self._span_budget = span_budget
        self._ranks: dict[int, FollowedRank] = {}
        self.watch = watch
        self._announcer = announcer
        self._reporter = StallReporter(outputs.sink, outputs.events, self, announcer, docs_url)
        self._findings: list[Finding | FindingOver] = []
        self._spans_dropped = 0
        self._silent_ends = SilentEnds(deaths)
        self._live = live
        self._machine = machine
        self.metrics = NodeMetrics(
            self.spans_dropped,
            archive_dropped=lambda: archive.dropped if archive is not None else None,
            machine=lambda: machine.reading if machine is not None else None,
        )
        self._ends = AttemptEnds(self.metrics)
        self._conclusions = Conclusions()
        provider = outputs.meter_provider
        self._pushed = OTelMetrics(self.metrics, provider) if provider is not None else None
        self._push = PromptPush(provider)
        self.incidents: list[Event] = []
        self.failed: dict[int, Exception] = {}
        self._is_behind = False
        self._has_skipped = False
        self._losses = LossLog()
        self.shares = shares or MemoryShares()
        self.slow_s = SLOW_S

    @property
    def serves_metrics(self) -> bool:
        """Whether this process has to serve `/metrics`."""
        return self._outputs.serves_metrics

    def spans_dropped(self) -> int:
        """Return the number of spans lost because the exporter did not accept them in time."""
        dropped = sum(rank.spans_dropped for rank in tuple(self._ranks.values()))
        return self._spans_dropped + dropped + self._outputs.sink.dropped

    def follow(
        self, tape: TapeReader, exported: bool = True, before: ReadingState | None = None, is_neighbor: bool = False
    ) -> None:
        """Start reading a tape.

        Args:
            tape: The tape; the reader closes it.
            exported: Whether to export its spans and metrics. If not, it is only watched for stalls.
            before: State of an earlier reader, to continue from; None to read from the oldest record.
            is_neighbor: Whether the tape belongs to another job, which another agent exports.
        """
        identity = tape.identity
        spans = metrics = None
        if exported:
            sampler = StepSampler(self._outputs.sampler, self._span_budget, identity.rank, identity.world_size)
            metrics = self.metrics.track(tape)
            describe = partial(attributes_beyond_resource, self._outputs.resource, self._outputs.describes_job, tape)
            outputs = self._outputs
            spans = RankSpans(tape, outputs.sink, sampler, outputs.links, metrics.add_exemplars, describe, self._run_of)
        rank = self._ranks[identity.nonce] = FollowedRank(tape, spans, metrics, is_neighbor=is_neighbor)
        if exported and self._archive is not None:
            rank.archive = TapeArchive(tape, self._archive)
        self.watch.follow(tape, exported and before is None, is_neighbor)
        if before is not None:
            self.watch.observe(identity.nonce, rank.resume(before))

    def _run_of(self, nonce: int) -> int | None:
        """Return the run id of a tape exported by this reader; None for other tapes."""
        rank = self._ranks.get(nonce)
        return rank.spans.run_id if rank is not None and rank.spans is not None else None

    def states(self) -> dict[int, ReadingState]:
        """Return the state of every exported tape, by nonce."""
        states = {nonce: rank.state for nonce, rank in self._ranks.items()}
        return {nonce: state for nonce, state in states.items() if state is not None}

    def knows(self, nonce: int) -> bool:
        """Return whether the tape with this nonce is being read."""
        return nonce in self._ranks

    @property
    def tapes(self) -> list[TapeReader]:
        """The tapes being read, without neighbors."""
        return [rank.tape for rank in self._ranks.values() if not rank.is_neighbor]

    @property
    def neighbors(self) -> int:
        """Number of tapes of other jobs being read."""
        return sum(rank.is_neighbor for rank in self._ranks.values())

    def life_of(self, tape: TapeReader) -> RankLife:
        """Return the state of a tape's writer; `RUNNING` also while its end is not established.

        Raises:
            TapeError: The tape is damaged.
        """
        return self._silent_ends.life_of(tape, self.tapes)

    @property
    def any_running(self) -> bool:
        """Whether any tape has not ended yet; neighbors do not count."""
        return any(rank.ended_at is None for rank in self._ranks.values() if not rank.is_neighbor)

    def turn(self, watches: bool = True, is_last: bool = False) -> None:
        """Read all new records, judge them, and report the result.

        Args:
            watches: Whether this reader watches for stalls; any earlier watcher has stopped.
            is_last: Whether this is the reader's last turn.
        """
        began_ns = time.monotonic_ns()
        self._read_all(keeps_up=is_last)
        if self._machine is not None:
            ranks = [rank.tape for rank in self._ranks.values() if rank.ended_at is None and not rank.is_neighbor]
            self._machine.update([WatchedRank(tape.path, tape.identity, tape.owner) for tape in ranks])
        self.incidents = []
        if watches:
            self.incidents = self.watch.check(time.monotonic_ns(), is_last, began_ns)
            self.report(self.incidents)
            self.failed |= self.watch.failed
        else:
            self.watch.stand_down()
        tapes = {nonce: rank.tape for nonce, rank in self._ranks.items()}
        has_ended = self._ends.update(
            self.incidents, self.watch.seen if watches else (), tapes, self.watch.awaits_last_verdict
        )
        is_pending = self.watch.awaits_last_verdict or (self._announcer is not None and self._announcer.is_announcing)
        self._conclusions.update(self.watch.seen if watches else (), tapes, is_pending)
        if has_ended or any(isinstance(event, VerdictGiven) for event in self.incidents):
            self._push.request()
        for nonce, rank in list(self._ranks.items()):
            self._retire(nonce, rank)
        if self._live is not None:
            with guard.guarded("the live page"):
                self._live.end_turn(self.watch, self.tapes, self.metrics, watches)

    def _read_all(self, keeps_up: bool) -> None:
        """Poll all tapes. After a slow turn, skip records of tapes that are far behind, until all have caught up.

        Args:
            keeps_up: Whether to read every record now, however long that takes.
        """
        now_ns = time.monotonic_ns()
        self._is_behind = self._is_behind and not keeps_up
        self._has_skipped = False
        self.failed = {}
        for nonce in list(self._ranks):
            if self.shares.is_exceeded(self._ranks[nonce].tape.owner):
                continue  # the caller drops tapes of this user first
            try:
                self._read(nonce, now_ns)
            except Exception as error:  # one bad tape must not affect the others
                self.failed[nonce] = error
        self._is_behind = time.monotonic_ns() - now_ns > self.slow_s * 1e9 or (self._is_behind and self._has_skipped)

    def report(self, events: Iterable[Event]) -> None:
        """Report events in spans, logs and metrics, whether found by this reader or another component."""
        for event in events:
            if isinstance(event, Finding | FindingOver):
                self._findings.append(event)
            with guard.guarded("the report of a stall"):  # a failure for one run must not affect another
                self._reporter.report([event])
                show(event, self.metrics)

    def take_findings(self) -> list[Finding | FindingOver]:
        """Return the findings, and the ends of findings, since the last call."""
        findings, self._findings = self._findings, []
        return findings

    def _read(self, nonce: int, now_ns: int) -> None:
        rank = self._ranks[nonce]
        if rank.ended_at is not None:
            return
        try:
            # In this order, so that all records that a process writes before it releases its lock are read.
            alive = rank.tape.is_alive()
            status = rank.tape.status()
            batch = rank.tape.poll(may_skip=self._is_behind and alive)
            if not alive and self._silent_ends.exited_silently(rank.tape):
                status = replace(status, state=TapeState.FINISHED)
        except TapeError as error:
            _logger.warning("a tape can no longer be read: %s", error)
            self._forget(nonce)
            return
        self._has_skipped |= batch.is_cut
        self._losses.note(rank, batch)
        self.watch.observe(nonce, batch)
        self.shares.update(rank.tape, self.watch.channels_of(nonce))
        if self._live is not None and self._live.is_watched:
            self._live.observe(rank.tape, batch)
        rank.consume(batch, status, now_ns)
        is_over = not alive or status.state is not TapeState.RUNNING
        if is_over and not alive and self._may_be_ending(rank, status.state):
            return
        if is_over and batch.is_empty:
            rank.ended_at = time.monotonic()
            rank.end(status.heartbeat_ns if status.state is TapeState.RUNNING else now_ns)

    def _may_be_ending(self, rank: FollowedRank, state: TapeState) -> bool:
        if state is not TapeState.RUNNING or not self._silent_ends.is_ending(rank.tape):
            return False
        rank.unlocked_at = rank.unlocked_at or time.monotonic()
        return time.monotonic() - rank.unlocked_at < ENDING_S

    def _retire(self, nonce: int, rank: FollowedRank) -> None:
        if rank.ended_at is not None and rank.metrics is not None:
            with contextlib.suppress(TapeError):
                life = self.life_of(rank.tape)
                if life is not RankLife.RUNNING:
                    rank.metrics.mark_ended(cleanly=life is RankLife.FINISHED)
        if rank.ended_at is not None and time.monotonic() - rank.ended_at > SHOWN_AFTER_END_S:
            self._forget(nonce)

    def leave(self, directory: Path) -> None:
        """Remove a job directory from the metrics; its tapes have been forgotten before."""
        self._ends.leave(directory)
        self._conclusions.leave(directory)

    def forget(self, nonce: int) -> None:
        """Stop reading a tape, if it is being read."""
        if nonce in self._ranks:
            self._forget(nonce)

    def _forget(self, nonce: int) -> None:
        rank = self._ranks.pop(nonce)
        self.shares.forget(nonce)
        self.watch.forget(nonce)
        rank.end(time.monotonic_ns())
        self._spans_dropped += rank.spans_dropped
        if rank.metrics is not None:
            self.metrics.forget(nonce)
        rank.tape.close()

    def cut_for_stall(self, nonce: int, number: int, now_ns: int, incident: LinkTarget) -> LinkTarget | None:
        """See `StepTraces`."""
        rank = self._ranks.get(nonce)
        if rank is None or rank.spans is None:
            return None
        rank.spans.mark_stalled(number, incident)
        return rank.spans.end_segment(now_ns, incident)

    def close(self, watches: bool = True) -> None:
        """Read the remaining records, end all spans, and flush. Spans of live ranks stay open for the next reader.

        Args:
            watches: As for `turn`. If True, the end of an incident is reported.
        """
        with guard.guarded("the last pass"):
            self.turn(watches, is_last=True)
        now_ns = time.monotonic_ns()
        for rank in self._ranks.values():
            with guard.guarded("the end of a tape"):
                rank.leave(now_ns)
        if self._archive is not None:
            self._archive.close(ARCHIVE_FLUSH_S)
        self._outputs.sink.shutdown(FLUSH_S)
        if self._pushed is not None:
            self._pushed.stop()
        closers: tuple[Callable[[], object], ...] = self._outputs.closers
        for close in closers:
            with guard.guarded("closing an output"):
                close()
