"""A sink that keeps the spans it gets and checks the invariants that every sink relies on."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan
from tests.support.registry import assert_defined


class MemorySink:
    """Keeps spans in the order of their arrival.

    Fails at once on a duplicate id, on a parent that has not come before its child or is in another trace, on a span
    without a duration, and on an attribute that the registry in docs/semconv lacks or gives another type.

    Attributes:
        spans: Everything received.
        groups: The calls of `emit`: the spans, and whether they were urgent.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.spans: list[FinishedSpan] = []
        self.groups: list[tuple[tuple[FinishedSpan, ...], bool]] = []
        self._traces: dict[int, int] = {}

    def emit(self, spans: Sequence[FinishedSpan], urgent: bool = False) -> None:
        """Take spans."""
        self.groups.append((tuple(spans), urgent))
        for span in spans:
            assert 0 < span.span_id < 2**64
            assert 0 < span.trace_id < 2**128
            assert span.span_id not in self._traces, f"{span.name} came twice"
            assert span.end_ns > span.start_ns
            assert_defined(span.attributes)
            if span.parent_id is not None:
                assert self._traces.get(span.parent_id) == span.trace_id, f"{span.name} came before its parent"
            self._traces[span.span_id] = span.trace_id
        self.spans += spans

    def flush(self, timeout_s: float) -> bool:
        """Nothing is held back."""
        return True

    def shutdown(self, timeout_s: float) -> None:
        """Nothing to stop."""

    @property
    def anchors(self) -> list[FinishedSpan]:
        """Spans without a parent."""
        return [span for span in self.spans if span.parent_id is None]

    @property
    def operations(self) -> list[FinishedSpan]:
        """Spans with a parent."""
        return [span for span in self.spans if span.parent_id is not None]

    def under(self, anchor: FinishedSpan) -> list[FinishedSpan]:
        """The spans under an anchor."""
        return [span for span in self.spans if span.parent_id == anchor.span_id]
