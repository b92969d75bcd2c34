"""Sinks in front of other sinks: a fan-out to several sinks, and a sink that holds spans back.

Each exporter has its own queue, so that no exporter waits for another. Spans are held back until the export position
is recorded on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan, SpanSink


class FanOutSink:
    """A sink that passes every span to several sinks, or to none."""

    def __init__(self, sinks: Sequence[SpanSink]) -> None:
        """Take ownership of `sinks`."""
        self._sinks = tuple(sinks)

    @property
    def is_empty(self) -> bool:
        """Whether there are no sinks, so that no spans need to be created."""
        return not self._sinks

    @property
    def dropped(self) -> int:
        """Number of spans dropped by the sinks, counted once for each sink."""
        return sum(sink.dropped for sink in self._sinks)

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """See `SpanSink`."""
        for sink in self._sinks:
            sink.emit(spans, urgent)

    def flush(self, timeout_s: float) -> bool:
        """See `SpanSink`. The timeout applies to all sinks together."""
        deadline = time.monotonic() + timeout_s
        return all([sink.flush(max(deadline - time.monotonic(), 0.0)) for sink in self._sinks])

    def shutdown(self, timeout_s: float) -> None:
        """See `SpanSink`. The timeout applies to all sinks together."""
        deadline = time.monotonic() + timeout_s
        for sink in self._sinks:
            sink.shutdown(max(deadline - time.monotonic(), 0.0))


class HeldSink:
    """A sink that holds spans back from another sink until they are released. Belongs to one thread."""

    def __init__(self, sink: SpanSink, before_release: Callable[[], None]) -> None:
        """Hold spans back from `sink`. `before_release` is called before spans are passed on, and must not raise."""
        self._sink = sink
        self._before_release = before_release
        self._held: list[tuple[Sequence[FinishedSpan], bool]] = []

    @property
    def dropped(self) -> int:
        """Number of spans dropped by the other sink."""
        return self._sink.dropped

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Hold spans back until `release`. See `SpanSink`."""
        self._held.append((spans, urgent))

    def release(self) -> bool:
        """Pass on the held spans. Return whether there were any."""
        if not self._held:
            return False
        self._before_release()
        held, self._held = self._held, []
        for spans, urgent in held:
            self._sink.emit(spans, urgent)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Release all spans and flush."""
        self.release()
        return self._sink.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        """Release all spans, flush and stop."""
        self.release()
        self._sink.shutdown(timeout_s)
