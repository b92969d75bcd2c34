"""For how long a rank communicates, and for how long it is blocked by that."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.tape.layout import Word
from otel_torchdist.telemetry.metrics.durations import BusyTime
from tests.support.tapes.fake_tape import RUN, SECOND
from tests.support.tapes.metrics_node import Node


def shares(node: Node) -> tuple[float, float]:
    """Seconds in communication and seconds blocked, of rank 0."""
    node.poll()
    communicating = node.values("torchdist_communication_seconds_total")
    return communicating[RUN, "0"], node.values("torchdist_blocked_seconds_total")[RUN, "0"]


def test_synchronous_calls_block_for_as_long_as_they_take(node: Node) -> None:
    """Both times are those of the calls."""
    rank = node.add()
    rank.run(lasts=2 * SECOND)
    rank.run(at=5 * SECOND, lasts=SECOND, sequence=2)
    assert shares(node) == (3.0, 3.0)


def test_asynchronous_calls_that_overlap_are_counted_once(node: Node) -> None:
    """Two in flight from 0 to 4 s and from 3 to 6 s; the thread was in the calls, and waited from 5 s on."""
    rank = node.add()
    for at, sequence, returned in ((0, 1, SECOND // 2), (3 * SECOND, 2, SECOND // 4)):
        number = rank.begin(at=at, sequence=sequence, flags=Flag.ASYNC)
        rank.mark(number, Word.RETURNED, returned)
        if sequence == 2:
            rank.mark(number, Word.WAIT_ENTERED, 2 * SECOND)
            rank.mark(number, Word.WAIT_RETURNED, 3 * SECOND)
        rank.writer.complete(number, at, at + (4 if sequence == 1 else 3) * SECOND, How.POLL)
    assert shares(node) == (6.0, 1.75)


def test_what_goes_on_counts_while_it_goes_on(node: Node) -> None:
    """A call that hangs grows both times from poll to poll, and adds nothing twice when it ends."""
    rank = node.add()
    number = rank.begin(at=90 * SECOND)
    assert shares(node) == (10.0, 10.0)
    node.clock.now_ns += 5 * SECOND
    assert shares(node) == (15.0, 15.0)
    rank.writer.complete(number, 90 * SECOND, 107 * SECOND, How.CALL)
    node.clock.now_ns += 5 * SECOND
    assert shares(node) == (17.0, 17.0)


def test_receive_posted_early_counts_from_the_wait(node: Node) -> None:
    """It is unknown when the data arrived; the time between call and wait is not communication."""
    rank = node.add()
    number = rank.begin("recv", flags=Flag.POINT_TO_POINT | Flag.END_BY_WAIT | Flag.ASYNC)
    rank.mark(number, Word.RETURNED, SECOND)
    assert shares(node) == (0.0, 0.0)
    rank.mark(number, Word.WAIT_ENTERED, 60 * SECOND)
    rank.mark(number, Word.WAIT_RETURNED, 62 * SECOND)
    rank.writer.complete(number, 0, 62 * SECOND, How.WAIT)
    assert shares(node) == (2.0, 3.0)


@pytest.mark.parametrize("how", [How.ABANDONED, How.UNTRACKED, How.FAILED])
def test_without_an_end_there_is_no_communication(node: Node, how: How) -> None:
    """An operation that was dropped, failed or not followed on its device does not show how long it took."""
    rank = node.add()
    number = rank.begin(flags=Flag.ASYNC)
    rank.mark(number, Word.RETURNED, SECOND)
    rank.writer.complete(number, 0, 30 * SECOND, how)
    assert shares(node) == (0.0, 1.0)


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
