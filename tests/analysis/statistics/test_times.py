"""Times, waits and bandwidth of small histories, compared with values computed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.analysis.statistics.grouping import GroupingKey
from otel_torchdist.analysis.statistics.result import BandwidthOver, GroupRef, Latecomer
from otel_torchdist.cli.analyze.rows import Order, ordered
from otel_torchdist.model.kinds import Flag, How, Phase
from otel_torchdist.model.operations import EXACT
from otel_torchdist.tape.layout import Word
from tests.analysis.statistics.histories import MIB, MS, Ranks, only_row


def late_rank(ranks: Ranks) -> None:
    """Record an all_reduce of 1 MiB. Ranks arrive after 0, 10 and 30 ms, and leave after 40 ms."""
    for rank, at_ms in enumerate((0, 10, 30)):
        ranks.call(rank, at_ms, 40, message_bytes=MIB)


def test_last_arrival_splits_time(ranks_of: Callable[..., Ranks]) -> None:
    """Each rank waits until the last one arrives. The rest is the transfer, over which bandwidth is measured."""
    ranks = ranks_of()
    late_rank(ranks)
    found = statistics_of(ranks.histories())
    [row] = found.rows
    assert (row.calls_by_rank, row.timed, row.open, row.counts_differ) == ({0: 1, 1: 1, 2: 1}, 3, 0, False)
    assert (row.group, row.size_class) == (GroupRef(ranks.group.key, "default_pg", 3), "1MiB")
    assert (row.message_bytes, row.time_ns, row.median_ns, row.p99_ns) == (3 * MIB, 80 * MS, 30 * MS, 40 * MS)
    assert (row.split, row.wait_ns, row.transfer_ns) == (3, 50 * MS, 30 * MS)
    assert row.bandwidth is not None and row.bandwidth.over is BandwidthOver.TRANSFER
    assert row.bandwidth.algorithm_bytes_per_second == pytest.approx(MIB / 0.010)
    assert row.bandwidth.bus_bytes_per_second == pytest.approx(MIB / 0.010 * 4 / 3)
    assert (row.compared, row.latecomers) == (1, (Latecomer(2, 1, 20 * MS),))
    assert [(rank.waiting_ns, rank.communicating_ns, rank.came_last, rank.compared) for rank in found.ranks] == [
        (30 * MS, 40 * MS, 0, 1),
        (20 * MS, 30 * MS, 0, 1),
        (0, 10 * MS, 1, 1),
    ]
    [group] = found.groups
    assert (group.complete, group.skew_median_ns, group.skew_max_ns) == (1, 30 * MS, 30 * MS)


def test_clocks_are_never_compared(ranks_of: Callable[..., Ranks]) -> None:
    """If the members' clocks differ or are unknown, nothing is split, and bandwidth is a lower bound."""
    ranks = ranks_of()
    late_rank(ranks)
    for clocks in (("a", "a", "b"), ("", "", "")):
        histories = [
            dataclasses.replace(history, clock=clock) for history, clock in zip(ranks.histories(), clocks, strict=True)
        ]
        found = statistics_of(histories)
        [row] = found.rows
        assert (row.split, row.wait_ns, row.compared, row.latecomers) == (0, 0, 0, ())
        assert row.bandwidth is not None and row.bandwidth.over is BandwidthOver.DURATION
        assert row.bandwidth.algorithm_bytes_per_second == pytest.approx(3 * MIB / 0.080)
        assert [totals.waiting_ns for totals in found.ranks] == [None, None, None]
        assert found.groups[0].complete == 1 and found.groups[0].skew_median_ns is None


def test_unknown_member(ranks_of: Callable[..., Ranks]) -> None:
    """A member without records may have arrived last, so nothing is split."""
    ranks = ranks_of()
    late_rank(ranks)
    found = statistics_of(ranks.histories()[:2])
    assert (found.rows[0].split, found.rows[0].compared) == (0, 0)
    assert (found.groups[0].known, found.groups[0].group.members) == (2, 3)


def test_chosen_ranks(ranks_of: Callable[..., Ranks]) -> None:
    """Only the calls of requested ranks count, but their waits for other ranks are still known."""
    ranks = ranks_of()
    late_rank(ranks)
    found = statistics_of(ranks.histories(), only={0})
    [row] = found.rows
    assert (row.calls_by_rank, row.wait_ns, row.transfer_ns, row.compared) == ({0: 1}, 30 * MS, 10 * MS, 0)
    assert [totals.rank for totals in found.ranks] == [0]


def test_inexact_ends(ranks_of: Callable[..., Ranks]) -> None:
    """Every call is counted, but only calls with exact ends are timed."""
    ranks = ranks_of(1)
    for how in How:
        ranks.call(0, 0, 10, how=how)
    ranks.call(0, 0)
    [row] = statistics_of(ranks.histories()).rows
    others = len(How) - len(EXACT) - 1
    assert (row.calls, row.timed, row.not_timed, row.failed, row.open) == (len(How) + 1, len(EXACT), others, 1, 1)
    assert row.time_ns == len(EXACT) * 10 * MS


def test_broadcast(ranks_of: Callable[..., Ranks]) -> None:
    """In a broadcast, ranks wait for the root and not for each other, and all ranks know the size."""
    ranks = ranks_of()
    for rank, at_ms in enumerate((0, 20, 30)):
        ranks.call(rank, at_ms, 40, "broadcast", peer=1, message_bytes=16 if rank == 1 else 0)
    row = only_row(statistics_of(ranks.histories()), "broadcast")
    assert (row.split, row.wait_ns, row.transfer_ns, row.compared) == (2, 20 * MS, 30 * MS, 0)
    assert row.message_bytes == 16
    assert row.bandwidth is not None
    assert (
        row.bandwidth.algorithm_bytes_per_second == row.bandwidth.bus_bytes_per_second == pytest.approx(2 * 16 / 0.030)
    )


def test_reduce(ranks_of: Callable[..., Ranks]) -> None:
    """In a reduce, only the root is known to wait, for the last rank."""
    ranks = ranks_of()
    for rank, at_ms in enumerate((0, 20, 30)):
        ranks.call(rank, at_ms, 40, "reduce", peer=0)
    row = only_row(statistics_of(ranks.histories()), "reduce")
    assert (row.split, row.wait_ns, row.transfer_ns) == (1, 30 * MS, 10 * MS)


def test_send_and_receive(ranks_of: Callable[..., Ranks]) -> None:
    """A receive waits for its send. If the thread's wait begins late, the arrival of the data is unknown."""
    ranks = ranks_of(2)
    ranks.send(0, 1, 30, 32)
    ranks.receive(0, 1, 10, 40, waits_ms=10.001)
    ranks.send(0, 1, 50, 51, sequence=2)
    ranks.receive(0, 1, 45, 90, waits_ms=89, sequence=2)
    found = statistics_of(ranks.histories())
    received, sent = only_row(found, "recv"), only_row(found, "send")
    assert (received.split, received.wait_ns, received.transfer_ns) == (1, 20 * MS, 10 * MS)
    assert received.bandwidth is not None and received.bandwidth.algorithm_bytes_per_second == pytest.approx(16 / 0.010)
    assert (sent.split, sent.bandwidth and sent.bandwidth.over) == (0, BandwidthOver.DURATION)
    assert not found.differences
    [pairs] = found.groups
    assert (pairs.point_to_point, pairs.complete, pairs.skew_max_ns) == (True, 2, 20 * MS)


def test_coalesced_and_left_early(ranks_of: Callable[..., Ranks]) -> None:
    """The arrival at a coalesced call is unknown. A rank that left before the last arrival only waited."""
    ranks = ranks_of(2)
    for rank in range(2):
        ranks.call(rank, 10 * rank, 20, flags=int(Flag.COALESCED))
    ranks.call(0, 30, 35, sequence=2)
    ranks.call(1, 40, 45, sequence=2)
    [row] = statistics_of(ranks.histories()).rows
    assert (row.split, row.wait_ns, row.transfer_ns) == (2, 5 * MS, 5 * MS)


def test_on_a_device(ranks_of: Callable[..., Ranks]) -> None:
    """On a device, a rank arrives when the device starts the operation; without a known start, nothing is split."""
    ranks = ranks_of(2)
    device = int(Flag.ON_DEVICE)
    for sequence, how in ((1, How.EVENT), (2, How.UNTRACKED), (3, How.POLL)):
        for rank, began_ms in enumerate((2, 6)):
            tape = ranks.tapes[rank]
            number = tape.begin("all_reduce", ranks.group, at=0, flags=device, sequence=sequence)
            tape.writer.mark(number, Word.STARTED, began_ms * MS, how)
            tape.writer.complete(number, 0, 10 * MS, How.EVENT)
    [row] = statistics_of(ranks.histories()).rows
    assert (row.split, row.wait_ns, row.transfer_ns) == (2, 4 * MS, 8 * MS)


def test_overlapping_calls(ranks_of: Callable[..., Ranks]) -> None:
    """Communication time and waiting time count overlaps once."""
    ranks = ranks_of(2)
    other = dataclasses.replace(ranks.group, nth=1)
    for group, (first_ms, second_ms) in ((ranks.group, (0, 20)), (other, (10, 30))):
        ranks.call(0, first_ms, 40, group=group)
        ranks.call(1, second_ms, 40, group=group)
    found = statistics_of(ranks.histories())
    assert sum(row.time_ns for row in found.rows) == (40 + 20 + 30 + 10) * MS
    assert [totals.communicating_ns for totals in found.ranks] == [40 * MS, 20 * MS]
    assert [totals.waiting_ns for totals in found.ranks] == [30 * MS, 0]
    assert found.ranks[0].span_ns == 40 * MS


def test_percentiles_are_values_that_occurred(ranks_of: Callable[..., Ranks]) -> None:
    """For durations of 1 to 100 ms, the median is 50 ms and the 99th percentile 99 ms."""
    ranks = ranks_of(1)
    for place in range(100):
        ranks.call(0, 0, 1 + place * 37 % 100, sequence=place + 1)
    [row] = statistics_of(ranks.histories()).rows
    assert (row.timed, row.median_ns, row.p99_ns) == (100, 50 * MS, 99 * MS)


def test_grouping(ranks_of: Callable[..., Ranks]) -> None:
    """The keys of rows have only the requested properties; without any, all calls are in one row."""
    ranks = ranks_of(2)
    for rank in range(2):
        ranks.call(rank, 0, 10)
        ranks.call(rank, 10, 20, "barrier", message_bytes=0, sequence=2)
    histories = ranks.histories()
    assert [row.calls for row in statistics_of(histories, ()).rows] == [4]
    by_rank = statistics_of(histories, (GroupingKey.RANK, GroupingKey.OPERATION)).rows
    assert [(row.operation, row.rank, row.calls) for row in by_rank] == [
        ("all_reduce", 0, 1),
        ("barrier", 0, 1),
        ("all_reduce", 1, 1),
        ("barrier", 1, 1),
    ]
    assert {row.size_class for row in statistics_of(histories).rows} == {"4KiB", "none"}


def test_by_phase(ranks_of: Callable[..., Ranks]) -> None:
    """Calls inside and outside of backward passes are in separate rows, if rows are grouped by phase."""
    ranks = ranks_of(2)
    for rank in range(2):
        for sequence, phase in enumerate((Phase.BACKWARD, Phase.OUTSIDE_BACKWARD, Phase.BACKWARD, Phase.UNKNOWN), 1):
            ranks.call(rank, 10 * sequence, 10 * sequence + 5, sequence=sequence, phase=phase)
    rows = statistics_of(ranks.histories(), (GroupingKey.OPERATION, GroupingKey.PHASE)).rows
    assert {row.phase: row.calls for row in rows} == {"backward": 4, "outside_backward": 2, "unknown": 2}
    [row] = statistics_of(ranks.histories()).rows
    assert (row.phase, row.calls) == (None, 8)


def test_sampled_times_are_not_sums_of_all(ranks_of: Callable[..., Ranks]) -> None:
    """A line of which one call in four is timed is compared by the time that all of its calls take, not by the sample.

    Counts are of all calls; sums and percentiles remain those of the timed ones.
    """
    ranks = ranks_of(1)
    for number in range(16):
        ranks.call(0, 100 * number, 100 * number + 10, "all_gather", how=How.WATCHDOG if number % 4 else How.EVENT)
        ranks.call(0, 100 * number + 50, 100 * number + 55, "broadcast", how=How.EVENT)
    found = statistics_of(ranks.histories())
    sampled, timed = only_row(found, "all_gather"), only_row(found, "broadcast")
    assert (sampled.calls, sampled.timed, sampled.not_timed, timed.timed) == (16, 4, 12, 16)
    assert (sampled.time_ns, timed.time_ns) == (40 * MS, 80 * MS)
    assert (sampled.estimated_ns, timed.estimated_ns) == (160 * MS, 80 * MS)
    assert ordered((timed, sampled), Order.TIME) == (sampled, timed)
