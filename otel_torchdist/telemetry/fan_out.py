"""One sink in front of several: each exporter has a queue of its own, so that none waits for another."""

from __future__ import annotations

import time
from collections.abc import Sequence

from otel_torchdist.telemetry.model import FinishedSpan, SpanSink


class FanOutSink:
    """Gives every span to every sink; without any sink spans go nowhere."""

    def __init__(self, sinks: Sequence[SpanSink]) -> None:
        """Own `sinks` from now on."""
        self._sinks = tuple(sinks)

    @property
    def leads_nowhere(self) -> bool:
        """Whether there is no sink behind it, so that nobody needs to make spans."""
        return not self._sinks

    @property
    def dropped(self) -> int:
        """Spans that some sink could not hand on, counted for each of them."""
        return sum(sink.dropped for sink in self._sinks)

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """See `SpanSink`."""
        for sink in self._sinks:
            sink.emit(spans, urgent)

    def flush(self, timeout_s: float) -> bool:
        """See `SpanSink`; the time is for all sinks together."""
        deadline = time.monotonic() + timeout_s
        return all([sink.flush(max(deadline - time.monotonic(), 0.0)) for sink in self._sinks])

    def shutdown(self, timeout_s: float) -> None:
        """See `SpanSink`; the time is for all sinks together."""
        deadline = time.monotonic() + timeout_s
        for sink in self._sinks:
            sink.shutdown(max(deadline - time.monotonic(), 0.0))
