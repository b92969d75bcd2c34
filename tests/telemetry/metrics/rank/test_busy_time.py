"""Time in which any interval is open is counted once, however it becomes known in parts."""

from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.telemetry.metrics.rank.time_shares import BusyTime

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=12)
POLLS = st.sets(st.integers(0, 90), min_size=1, max_size=8)


def covered(intervals: list[tuple[int, int]], until: int) -> int:
    """How many moments before `until` lie in an interval, counted one by one."""
    return sum(any(begin <= moment < begin + lasts for begin, lasts in intervals) for moment in range(until))


@given(INTERVALS, POLLS)
def test_each_moment_is_counted_once(intervals: list[tuple[int, int]], polls: set[int]) -> None:
    """After every poll the total is the count of single moments, with open intervals up to now."""
    busy, before = BusyTime(), 0
    for now in sorted(polls):
        ended = [(begin, begin + lasts) for begin, lasts in intervals if before < begin + lasts <= now]
        begins = [begin for begin, lasts in intervals if begin <= now < begin + lasts]
        busy.add(ended, min(begins, default=None), now)
        assert busy.total_ns == covered(intervals, now)
        before = now


def test_what_begins_after_the_clock_was_read_takes_nothing_away() -> None:
    """A reader takes the time, and then polls its tapes, one after the other; a counter must never decrease."""
    busy = BusyTime()
    busy.add([(0, 10)], 25, 20)
    assert (busy.total_ns, busy.until_ns) == (10, 10)
    busy.add([], 25, 30)
    assert busy.total_ns == 15


def test_goes_on_from_a_checkpoint() -> None:
    """Time counted by another reader is not counted again."""
    first = BusyTime()
    first.add([(0, 10)], 12, 20)
    second = BusyTime(first.total_ns, first.until_ns)
    second.add([(0, 10), (12, 25)], None, 30)
    assert (first.total_ns, second.total_ns) == (18, 23)
