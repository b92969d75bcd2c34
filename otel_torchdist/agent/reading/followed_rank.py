"""One tape that is being read, and what becomes of it."""

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
    """How far one tape has been read, and the results, so that another reader can continue from there.

    Attributes:
        cursor: Position in the tape.
        spans: What has been handed over; None if nothing has been.
        metrics: What has been counted.
    """

    cursor: TapeCursor
    spans: SpansState | None
    metrics: MetricsState


@dataclass(slots=True)
class FollowedRank:
    """One tape and its outputs.

    Attributes:
        tape: The tape.
        spans: Its spans; None if another process exports them.
        metrics: Its metrics; None if another process exports them.
        archive: What is archived of it; None if it is not.
        ended_at: Monotonic time in seconds at which its end was seen.
        unlocked_at: Monotonic time in seconds at which its lock was first seen to be free.
        has_been_read: Whether it has been polled.
        is_neighbour: Whether it belongs to another job, which another agent reads.
    """

    tape: TapeReader
    spans: RankSpans | None
    metrics: RankMetrics | None
    archive: TapeArchive | None = None
    ended_at: float | None = None
    unlocked_at: float | None = None
    has_been_read: bool = False
    is_neighbour: bool = False

    @property
    def spans_dropped(self) -> int:
        """How many of its spans were lost because they could not be handed on."""
        return self.spans.dropped if self.spans is not None else 0

    @property
    def state(self) -> ReadingState | None:
        """How far it has been read; None if another process exports it."""
        if self.spans is None or self.metrics is None:
            return None
        return ReadingState(self.tape.cursor, self.spans.state, self.metrics.state)

    def resume(self, before: ReadingState) -> Batch:
        """Continue where another reader stopped; returns what that one has read."""
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
        """Pass what has been read on to all outputs."""
        if self.metrics is not None:  # before the spans, which add exemplars to what has been counted
            self.metrics.consume(batch, status, now_ns)
        if self.spans is not None:
            self.spans.consume(batch, status, now_ns)
        if self.archive is not None:
            self.archive.consume(batch, status, now_ns)

    def end(self, at_ns: int) -> None:
        """End what is open: nothing more comes."""
        if self.archive is not None:
            self.archive.close()
        if self.spans is not None:
            self.spans.close(at_ns)

    def leave(self, now_ns: int) -> None:
        """Stop; the spans of a rank that is alive are left to the next reader."""
        if self.spans is not None and self.tape.is_alive():
            self.spans.pause(now_ns)
        elif self.spans is not None:
            self.spans.close(now_ns)
        if self.archive is not None:
            self.archive.close()


# --- losses -----------------------------------------------------------------------------------------------------------
# Warns of records that are lost while a tape is read.


MANY_LOST: Final = 64
"""Records of one turn that are worth a warning: damage, or a thread that died, loses single ones."""
LOST: Final = (
    "rank %d records operations faster than they can be read: %d records were not read, and later ones will not be "
    "either. Their operations have no spans, and are missing in counters of operations, bytes and durations; they are "
    "counted in torchdist_records_lost_total. Operations that do not end, and so stalls, are seen all the same"
)
REFUSED: Final = (
    "%s: records are left out that no rank of this version writes, because their kind is unknown or a number in them "
    "is impossible; they are counted in torchdist_records_lost_total"
)

_logger = logging.getLogger("otel_torchdist")


class LossLog:
    """Warns once of each user's losses, so that a forged tape of one user hides no loss of another."""

    def __init__(self) -> None:
        self._behind: set[int] = set()
        self._refused: set[int] = set()

    def note(self, rank: FollowedRank, batch: Batch) -> None:
        """Warn if records were lost; what was overwritten before the first poll is no surprise."""
        tape = rank.tape
        missed = batch.lost - batch.refused
        if missed >= MANY_LOST and rank.has_been_read and tape.owner not in self._behind:
            self._behind.add(tape.owner)
            _logger.warning(LOST, tape.identity.rank, missed)
        if batch.refused and tape.owner not in self._refused:
            self._refused.add(tape.owner)
            _logger.warning(REFUSED, tape.path)
        rank.has_been_read = True
