"""One tape being read, and its outputs: spans, metrics and archive."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from otel_torchdist.sources.archive.tapes import TapeArchive
from otel_torchdist.tape.reading.batch import Batch, TapeCursor
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus
from otel_torchdist.telemetry.metrics.rank_metrics import RankMetrics
from otel_torchdist.telemetry.metrics.rank_series import MetricsState
from otel_torchdist.telemetry.spans.steps import RankSpans, SpansState


@dataclass(frozen=True, slots=True)
class ReadingState:
    """The reading position of one tape and the state of its outputs, for another reader to continue from.

    Attributes:
        cursor: Position in the tape.
        spans: State of the spans; None before the first span.
        metrics: State of the counters.
    """

    cursor: TapeCursor
    spans: SpansState | None
    metrics: MetricsState


@dataclass(slots=True)
class FollowedRank:
    """One tape and its outputs.

    Attributes:
        spans: None if another process exports the spans.
        metrics: None if another process exports the metrics.
        archive: None if the tape is not archived.
        ended_at: Monotonic time in seconds at which the tape's end was seen.
        unlocked_at: Monotonic time in seconds at which the tape's lock was first seen free.
        has_been_read: Whether the tape has been polled.
        is_neighbor: Whether the tape belongs to another job, which another agent exports.
    """

    tape: TapeReader
    spans: RankSpans | None
    metrics: RankMetrics | None
    archive: TapeArchive | None = None
    ended_at: float | None = None
    unlocked_at: float | None = None
    has_been_read: bool = False
    is_neighbor: bool = False

    @property
    def spans_dropped(self) -> int:
        """Number of spans lost because the exporter did not accept them."""
        return self.spans.dropped if self.spans is not None else 0

    @property
    def state(self) -> ReadingState | None:
        """Reading position and state of the outputs; None if another process exports the tape."""
        if self.spans is None or self.metrics is None:
            return None
        return ReadingState(self.tape.cursor, self.spans.state, self.metrics.state)

    def resume(self, before: ReadingState) -> Batch:
        """Continue where another reader stopped; return a batch of the records before that position."""
        past = self.tape.another().read_before(before.cursor)
        self.tape.resume(before.cursor)
        if self.archive is not None:
            self.archive.resume(past)
        if self.metrics is not None:
            self.metrics.resume(before.metrics)
        if self.spans is not None and before.spans is not None:
            self.spans.resume(before.spans, [*past.ended, *past.activities_ended])
        elif self.spans is not None:
            self.spans.consume(past, self.tape.status(), time.monotonic_ns())
        return past

    def consume(self, batch: Batch, status: TapeStatus, now_ns: int) -> None:
        """Pass a batch to all outputs."""
        if self.metrics is not None:  # before the spans, which add exemplars to the counts
            self.metrics.consume(batch, status, now_ns)
        if self.spans is not None:
            self.spans.consume(batch, status, now_ns)
        if self.archive is not None:
            self.archive.consume(batch, status, now_ns)

    def end(self, at_ns: int) -> None:
        """Close the archive and end the open spans: the tape has ended."""
        if self.archive is not None:
            self.archive.close()
        if self.spans is not None:
            self.spans.close(at_ns)

    def leave(self, now_ns: int) -> None:
        """Stop reading. If the rank is alive, its open spans are left to the next reader."""
        if self.spans is not None and self.tape.is_alive():
            self.spans.pause(now_ns)
        elif self.spans is not None:
            self.spans.close(now_ns)
        if self.archive is not None:
            self.archive.close()


# --- losses -----------------------------------------------------------------------------------------------------------
# Warns of records that were lost while a tape was read.


MANY_LOST: Final = 64
"""Minimum lost records per turn for a warning: damage, or a thread that died, loses single records."""
LOST: Final = (
    "rank %d records operations faster than they can be read: %d records were overwritten unread, and more will be. "
    "Their operations have no spans, and are missing from the counters of operations, bytes and durations; "
    "torchdist_records_lost_total counts them. Operations that do not end, and so stalls, are still detected"
)
REFUSED: Final = (
    "%s: records that no rank of this version writes are left out: their kind is unknown, or they contain an "
    "impossible number; torchdist_records_lost_total counts them"
)

_logger = logging.getLogger("otel_torchdist")


class LossLog:
    """The warnings of lost records: one for each user, so that a forged tape of one user hides no loss of another."""

    def __init__(self) -> None:
        self._behind: set[int] = set()
        self._refused: set[int] = set()

    def note(self, rank: FollowedRank, batch: Batch) -> None:
        """Warn if records were lost. Losses before the first poll do not count: the reader may have started late."""
        tape = rank.tape
        missed = batch.lost - batch.refused
        if missed >= MANY_LOST and rank.has_been_read and tape.owner not in self._behind:
            self._behind.add(tape.owner)
            _logger.warning(LOST, tape.identity.rank, missed)
        if batch.refused and tape.owner not in self._refused:
            self._refused.add(tape.owner)
            _logger.warning(REFUSED, tape.path)
        rank.has_been_read = True
