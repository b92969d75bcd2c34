"""What waits for export, and what is dropped when there is too much of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.telemetry.export.queued_sink import SpanGroup, SpanQueue
from otel_torchdist.telemetry.spans.finished_spans import FinishedSpan


def group(size: int, urgent: bool = False) -> SpanGroup:
    """A group of some spans."""
    span = FinishedSpan("all_reduce", 1, 2, None, 1, 2, {})
    return SpanGroup([span] * size, urgent)


def test_urgent_groups_are_taken_first() -> None:
    """Stall evidence does not wait behind healthy steps, and each kind keeps its order."""
    queue = SpanQueue(100)
    healthy, urgent = [group(1), group(2)], [group(3, urgent=True), group(4, urgent=True)]
    for one in (healthy[0], urgent[0], healthy[1], urgent[1]):
        queue.put(one)
    assert queue.take(100) == urgent
    assert queue.take(100) == healthy
    assert queue.take(100) == []


def test_groups_are_taken_whole() -> None:
    """As many as fit, and a group that is larger than the limit comes alone."""
    queue = SpanQueue(100)
    sizes = [30, 3, 3, 5]
    for size in sizes:
        queue.put(group(size))
    assert [[len(one.spans) for one in queue.take(10)] for _ in range(3)] == [[30], [3, 3], [5]]


def test_the_oldest_healthy_group_goes_first_and_urgent_ones_last() -> None:
    """A group is dropped as a whole."""
    queue = SpanQueue(10)
    for one in (group(4, urgent=True), group(3), group(2)):
        queue.put(one)
    queue.put(group(2))
    assert (queue.spans, queue.dropped) == (8, 3)
    queue.put(group(5, urgent=True))
    assert (queue.spans, queue.dropped) == (9, 7)
    queue.put(group(3, urgent=True))
    assert (queue.spans, queue.dropped) == (8, 11)
    assert [len(one.spans) for one in queue.take(100)] == [5, 3]


@given(st.lists(st.one_of(st.integers(1, 30).map(lambda size: -size), st.tuples(st.integers(1, 60), st.booleans()))))
def test_every_span_is_waiting_taken_or_counted(actions: list[int | tuple[int, bool]]) -> None:
    """The counts add up, and the bound holds, whatever is added and taken."""
    queue = SpanQueue(50)
    put = taken = 0
    for action in actions:
        if isinstance(action, int):
            taken += sum(len(one.spans) for one in queue.take(-action))
        else:
            put += action[0]
            queue.put(group(*action))
        assert queue.spans <= 50
        assert put == taken + queue.spans + queue.dropped
