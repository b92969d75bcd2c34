"""Holds spans back until it is written down that they have been handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from otel_torchdist.telemetry.model import FinishedSpan, SpanSink


class HeldSink:
    """A sink in front of another one. Belongs to one thread."""

    def __init__(self, sink: SpanSink, write_down: Callable[[], None]) -> None:
        """Call `write_down` before anything goes on to `sink`; it must not raise."""
        self._sink = sink
        self._write_down = write_down
        self._held: list[tuple[Sequence[FinishedSpan], bool]] = []

    @property
    def dropped(self) -> int:
        """As the other sink's."""
        return self._sink.dropped

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Hold spans back until `release`; see `SpanSink`."""
        self._held.append((spans, urgent))

    def release(self) -> bool:
        """Let go what is held; returns whether there was anything."""
        if not self._held:
            return False
        self._write_down()
        held, self._held = self._held, []
        for spans, urgent in held:
            self._sink.emit(spans, urgent)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Let go of everything and flush."""
        self.release()
        return self._sink.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        """Let go of everything, flush and stop."""
        self.release()
        self._sink.shutdown(timeout_s)
