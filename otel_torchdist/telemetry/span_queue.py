"""A bounded queue of whole groups of spans. Not thread-safe: its owner has a lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from otel_torchdist.telemetry.model import FinishedSpan


@dataclass(slots=True)
class SpanGroup:
    """Spans that are exported together or dropped together.

    Attributes:
        spans: Parents first.
        urgent: Stall evidence.
        attempts: How often its export has failed.
    """

    spans: Sequence[FinishedSpan]
    urgent: bool
    attempts: int = 0


class SpanQueue:
    """Urgent groups first; in want of room the oldest healthy group goes, urgent ones only when no other is left.

    Attributes:
        spans: Spans in the queue.
        dropped: Spans that found no room.
    """

    def __init__(self, max_spans: int) -> None:
        """Hold at most `max_spans`."""
        self.spans = 0
        self.dropped = 0
        self._max_spans = max_spans
        self._urgent: deque[SpanGroup] = deque()
        self._healthy: deque[SpanGroup] = deque()

    def put(self, group: SpanGroup) -> None:
        """Add a group behind those of its kind."""
        (self._urgent if group.urgent else self._healthy).append(group)
        self._make_room(len(group.spans))

    def put_back(self, group: SpanGroup, is_last: bool) -> None:
        """Add an urgent group before all others of its kind, or behind them."""
        (self._urgent.append if is_last else self._urgent.appendleft)(group)
        self._make_room(len(group.spans))

    def probe(self, max_attempts: int) -> list[SpanGroup]:
        """Remove the next group; a healthy one while the next urgent one has failed so often that it may be why."""
        if self._healthy and self._urgent and self._urgent[0].attempts >= max_attempts:
            group = self._healthy.popleft()
            self.spans -= len(group.spans)
            return [group]
        return self.take(0)

    def take(self, max_spans: int) -> list[SpanGroup]:
        """Remove the next groups of one kind: one, and more that fit into `max_spans` unless one has failed before."""
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
        """Drop everything."""
        self.dropped += self.spans
        self.spans = 0
        self._urgent.clear()
        self._healthy.clear()

    def _make_room(self, added: int) -> None:
        self.spans += added
        while self.spans > self._max_spans:
            victim = (self._healthy or self._urgent).popleft()
            self.spans -= len(victim.spans)
            self.dropped += len(victim.spans)
