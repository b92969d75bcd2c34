"""A sink with a bounded queue and its own thread, so that emitting never waits for a network."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_torchdist import guard
from otel_torchdist.errors import TorchDistError
from otel_torchdist.system.this_process.end import can_start_threads
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan

MAX_QUEUED_SPANS: Final = 32_768
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
DEAD_SHUTDOWN_S: Final = 1.0
"""Maximum time of a shutdown while the destination fails."""
CLOSED_S: Final = 1.0
"""Minimum time to wait for the thread after the destination was closed, so that remaining spans are counted."""
MAX_ATTEMPTS: Final = 10
"""Failed exports of stall evidence, after which the receiver may reject this evidence rather than be down. Then other
spans are sent. If they are accepted and the evidence fails once more, the evidence is dropped. If they fail too, the
receiver is down, and the evidence is kept."""
WARNING_INTERVAL_S: Final = 3600.0

_logger = logging.getLogger("otel_torchdist")


class ExportError(TorchDistError):
    """The destination did not accept a portion of spans; the message gives the reason.

    Attributes:
        sent: Number of the portion's first spans that were accepted in an earlier request.
        rejected: Number of these that the receiver rejected.
    """

    def __init__(self, reason: str, sent: int = 0, rejected: int = 0) -> None:
        super().__init__(reason)
        self.sent = sent
        self.rejected = rejected


class Destination(Protocol):
    """A destination to which the thread of a `QueuedSink` sends spans.

    Attributes:
        name: Name in warnings.
        portion: Upper bound on the spans of one call to `send`.
    """

    name: str
    portion: int

    def send(self, spans: Sequence[FinishedSpan], urgent: bool) -> int:
        """Send at most `portion` spans. May block.

        Returns:
            Number of spans rejected by the receiver in an accepted request. They must not be sent again.

        Raises:
            ExportError: The spans were not accepted.
        """
        ...

    def flush(self, timeout_s: float) -> bool:
        """Send spans buffered in the destination. Return False if that failed. May take longer than `timeout_s`."""
        ...

    def close(self) -> None:
        """Stop. Called once, from another thread. Then `send` and `flush` must return soon."""
        ...


class QueuedSink:
    """A sink that queues groups of spans until the destination accepts them.

    A failed destination is retried after a pause of 1 s to 30 s, with one group at a time, while the queue fills up.
    Failed spans are not sent again, because they may have arrived, and a receiver must not get a span twice. Only stall
    evidence is sent again, because losing it would be worse than a duplicate. The first failure is logged as a warning.
    Later failures are silent until a success.
    """

    def __init__(
        self,
        destination: Destination,
        max_spans: int = MAX_QUEUED_SPANS,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        """Start the thread.

        Args:
            destination: The destination of the spans.
            max_spans: Upper bound on the queued spans, of about 1 kB each.
            first_pause_s: Pause after the first failure, doubled after each further failure.
            longest_pause_s: Upper bound on the pause.
        """
        self._pauses_s = first_pause_s, longest_pause_s
        self._destination = destination
        self._changed = threading.Condition()
        self._queue = SpanQueue(max_spans)
        self._refused = 0
        self._failures = 0
        self._failures_in_a_row = 0
        self._flushes_wanted = 0
        self._flushes_done = 0
        self._flush_deadline = 0.0
        self._is_flushed = True
        self._pause_s = 0.0
        self._retry_at = 0.0
        self._warned_at: float | None = None
        self._has_shut_down = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        thread = threading.Thread(target=self._run, name=f"otel-torchdist {destination.name}", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:
            if can_start_threads():
                raise
            # Python 3.12 starts no threads during shutdown, such as after a short job: `flush` sends the spans.

    @property
    def dropped(self) -> int:
        """Number of spans dropped because the queue was full, or not accepted by the destination."""
        with self._changed:
            return self._queue.dropped + self._refused

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Queue spans, parents first; see `SpanSink`."""
        with self._changed:
            if self._is_closing:
                self._refused += len(spans)
                return
            self._queue.put(SpanGroup(tuple(spans), urgent))
            if urgent:
                self._retry_at = 0.0
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Export the queued spans. Return False on timeout, or if the destination fails."""
        with self._changed:
            failures = self._failures
            self._retry_at = 0.0
            self._flush_deadline = time.monotonic() + timeout_s
            self._flushes_wanted += 1
            flush_number = self._flushes_wanted
            self._changed.notify_all()
        if self._thread is None:
            self._send_in_caller()
        with self._changed:
            self._changed.wait_for(lambda: self._flushes_done >= flush_number or self._failures > failures, timeout_s)
            return self._flushes_done >= flush_number and self._failures == failures and self._is_flushed

    def shutdown(self, timeout_s: float) -> None:
        """Flush and stop. Remaining spans are counted as dropped."""
        with self._changed:
            if self._has_shut_down:
                return
            self._has_shut_down = True
            if self._pause_s > 0:  # a dead endpoint must not delay the end of a process
                timeout_s = min(timeout_s, DEAD_SHUTDOWN_S)
        deadline = time.monotonic() + timeout_s
        self.flush(timeout_s)
        with self._changed:
            self._is_closing = True
            self._queue.clear()
            self._changed.notify_all()
        with guard.guarded(f"closing {self._destination.name}"):
            self._destination.close()
        if self._thread is not None:
            self._thread.join(max(deadline - time.monotonic(), CLOSED_S))

    def _send_in_caller(self) -> None:
        """Send all queued spans in the calling thread, until the destination fails."""
        failures = self._failures
        with suppress_instrumentation():
            while self._failures == failures and self._flushes_done < self._flushes_wanted:
                self._send_next(self._next_groups() or [])

    def _run(self) -> None:
        with suppress_instrumentation():
            while (groups := self._next_groups()) is not None:
                self._send_next(groups)

    def _send_next(self, groups: list[SpanGroup]) -> None:
        if groups:
            self._export(groups)
        else:
            self._flush_destination()

    def _next_groups(self) -> list[SpanGroup] | None:
        """Wait for groups to send. Return an empty list for a flush, and None at the end."""
        with self._changed:
            while not self._is_closing:
                pause_s = self._retry_at - time.monotonic()
                if self._queue.spans and pause_s <= 0:
                    is_probe = self._pause_s > 0
                    return self._queue.probe(MAX_ATTEMPTS) if is_probe else self._queue.take(self._destination.portion)
                if not self._queue.spans and self._flushes_done < self._flushes_wanted:
                    return []
                self._changed.wait(pause_s if self._queue.spans else None)
            return None

    def _flush_destination(self) -> None:
        """Flush in the sink's thread, because some destinations exceed their time limit."""
        with self._changed:
            flush_number = self._flushes_wanted
            timeout_s = max(self._flush_deadline - time.monotonic(), 0.0)
        is_flushed = False
        with guard.guarded(f"flushing {self._destination.name}"):
            is_flushed = self._destination.flush(timeout_s)
        with self._changed:
            self._is_flushed = is_flushed
            self._flushes_done = flush_number
            self._changed.notify_all()

    def _export(self, groups: list[SpanGroup]) -> None:
        """Send groups in portions. If a portion fails, the remaining portions count as failed."""
        spans = [span for group in groups for span in group.spans]
        urgent = groups[0].urgent
        portion = self._destination.portion
        for first in range(0, len(spans), portion):
            try:
                rejected = self._destination.send(spans[first : first + portion], urgent)
            except Exception as error:
                sent, rejected = (error.sent, error.rejected) if isinstance(error, ExportError) else (0, 0)
                with self._changed:
                    self._refused += rejected
                self._note_failure(error, SpanGroup(spans[first + sent :], urgent, groups[0].attempts + 1))
                return
            with self._changed:
                self._refused += rejected
        self._note_success()

    def _note_success(self) -> None:
        with self._changed:
            was_down = self._pause_s > 0
            self._pause_s = self._retry_at = 0.0
            self._failures_in_a_row = 0
            self._changed.notify_all()
        if was_down:
            _logger.info("spans are exported again (%s)", self._destination.name)

    def _note_failure(self, error: Exception, unsent: SpanGroup) -> None:
        with self._changed:
            self._failures += 1
            self._failures_in_a_row += 1
            is_first = self._pause_s == 0
            first_s, longest_s = self._pauses_s
            self._pause_s = min(max(self._pause_s * 2, first_s), longest_s)
            self._retry_at = time.monotonic() + self._pause_s
            is_refused = unsent.attempts > max(self._failures_in_a_row, MAX_ATTEMPTS)
            if unsent.urgent and not is_refused and not self._is_closing:
                self._queue.put_back(unsent, is_last=unsent.attempts >= MAX_ATTEMPTS)
            else:
                self._refused += len(unsent.spans)
            self._changed.notify_all()
        if is_first:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        now = time.monotonic()
        if self._warned_at is not None and now - self._warned_at < WARNING_INTERVAL_S:
            return
        self._warned_at = now
        _logger.warning(
            "spans cannot be exported (%s): %s. Training is not affected; spans that do not fit into the queue are "
            "dropped and counted. Further attempts are not logged until one succeeds.",
            self._destination.name,
            error,
        )


@dataclass(slots=True)
class SpanGroup:
    """Spans that are exported together or dropped together.

    Attributes:
        spans: Parents first.
        urgent: Whether they are stall evidence.
        attempts: Number of failed exports.
    """

    spans: Sequence[FinishedSpan]
    urgent: bool
    attempts: int = 0


class SpanQueue:
    """A bounded queue with priority for urgent groups.

    If it is full, the oldest healthy group is dropped. Urgent groups are dropped only if no healthy group is left.

    Attributes:
        spans: Number of queued spans.
        dropped: Number of dropped spans.
    """

    def __init__(self, max_spans: int) -> None:
        """Create a queue for at most `max_spans`."""
        self.spans = 0
        self.dropped = 0
        self._max_spans = max_spans
        self._urgent: deque[SpanGroup] = deque()
        self._healthy: deque[SpanGroup] = deque()

    def put(self, group: SpanGroup) -> None:
        """Add a group behind the groups of its kind."""
        (self._urgent if group.urgent else self._healthy).append(group)
        self._make_room(len(group.spans))

    def put_back(self, group: SpanGroup, is_last: bool) -> None:
        """Add a failed urgent group before all other urgent groups, or behind them if `is_last`."""
        (self._urgent.append if is_last else self._urgent.appendleft)(group)
        self._make_room(len(group.spans))

    def probe(self, max_attempts: int) -> list[SpanGroup]:
        """Pop one group after a failure: a healthy group if the next urgent group has failed `max_attempts` times."""
        if self._healthy and self._urgent and self._urgent[0].attempts >= max_attempts:
            group = self._healthy.popleft()
            self.spans -= len(group.spans)
            return [group]
        return self.take(0)

    def take(self, max_spans: int) -> list[SpanGroup]:
        """Pop the next batch: groups of one kind, up to `max_spans` spans. After a failure, one group at a time."""
        source = self._urgent or self._healthy
        taken: list[SpanGroup] = []
        size = 0
        while source and (not taken or size + len(source[0].spans) <= max_spans):
            if taken and (taken[0].attempts or source[0].attempts):
                break
            taken.append(source.popleft())
            size += len(taken[-1].spans)
        self.spans -= size
        return taken

    def clear(self) -> None:
        """Drop all groups."""
        self.dropped += self.spans
        self.spans = 0
        self._urgent.clear()
        self._healthy.clear()

    def _make_room(self, added: int) -> None:
        self.spans += added
        while self.spans > self._max_spans:
            oldest = (self._healthy or self._urgent).popleft()
            self.spans -= len(oldest.spans)
            self.dropped += len(oldest.spans)
