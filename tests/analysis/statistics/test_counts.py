"""Differences in the number of calls between members of a group."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.analysis.statistics.result import CallCount, CountDifference, GroupRef
from otel_torchdist.model.kinds import RecordKind
from tests.analysis.statistics.histories import Ranks


def test_rank_that_has_called_less(ranks_of: Callable[..., Ranks]) -> None:
    """A rank with fewer calls is reported with the other ranks' counts, and its missing sequence is incomplete."""
    ranks = ranks_of()
    for rank in range(3):
        ranks.call(rank, 0, 10)
    for rank in (0, 1):
        ranks.call(rank, 20, sequence=2)
    found = statistics_of(ranks.histories())
    [difference] = found.differences
    counts = [CallCount(0, "all_reduce", 2, 1), CallCount(1, "all_reduce", 2, 1), CallCount(2, "all_reduce", 1, 0)]
    assert difference == CountDifference(
        GroupRef(ranks.group.key, "default_pg", len(counts)), "all_reduce", None, None, tuple(counts)
    )
    [row] = found.rows
    assert (row.counts_differ, row.open) == (True, 2)
    [group] = found.groups
    assert (group.complete, group.open, group.incomplete) == (1, 0, 1)
    [unfinished] = group.unfinished
    assert (unfinished.sequence, unfinished.missing, unfinished.open) == (2, (2,), (0, 1))


def test_rank_that_has_called_nothing(ranks_of: Callable[..., Ranks]) -> None:
    """A member with records but without calls in a group counts as missing; a member without records does not."""
    ranks = ranks_of()
    ranks.call(0, 0)
    ranks.call(1, 0)
    histories = ranks.histories()
    [difference] = statistics_of(histories).differences
    assert [(count.rank, count.calls) for count in difference.counts] == [(0, 1), (1, 1), (2, 0)]
    assert statistics_of(histories[:2]).differences == ()


def test_different_operations_at_one_position(ranks_of: Callable[..., Ranks]) -> None:
    """Ranks with different calls at one position differ in both operations, and their calls are not split."""
    ranks = ranks_of(2)
    ranks.call(0, 0, 10, "all_reduce")
    ranks.call(1, 5, 10, "barrier")
    found = statistics_of(ranks.histories())
    counts = [(difference.operation, [count.calls for count in difference.counts]) for difference in found.differences]
    assert counts == [("all_reduce", [1, 0]), ("barrier", [0, 1])]
    assert (found.groups[0].mismatched, found.groups[0].complete) == (1, 1)
    ranks.call(0, 20, 30, "all_reduce", sequence=2)
    ranks.call(1, 25, 30, "broadcast", sequence=2, peer=0)
    assert sum(row.split for row in statistics_of(ranks.histories()).rows if row.operation == "broadcast") == 0


def test_sends_without_receives(ranks_of: Callable[..., Ranks]) -> None:
    """Sends are compared with the receives of the same pair of ranks, over all tags."""
    ranks = ranks_of(3)
    for tag in (1, 2):
        ranks.send(0, 1, 0, 10, tag=tag)
    ranks.receive(0, 1, 0, 10, tag=1)
    ranks.send(1, 2, 0, 10)
    ranks.receive(1, 2, 0, 10)
    found = statistics_of(ranks.histories())
    [difference] = found.differences
    assert difference.ends == (0, 1)
    assert difference.counts == (CallCount(0, "send", 2, 0), CallCount(1, "recv", 1, 0))
    assert statistics_of(ranks.histories()[1:]).differences == ()


def test_receives_from_any_rank(ranks_of: Callable[..., Ranks]) -> None:
    """Messages to a rank that receives from any rank cannot be matched, and are no difference."""
    ranks = ranks_of(3)
    for source in (0, 1):
        ranks.send(source, 2, 0, 10)
        ranks.receive(-1, 2, 0, 10, sequence=source + 1)
    found = statistics_of(ranks.histories())
    assert (found.differences, found.groups) == ((), ())


def test_group_that_some_create(ranks_of: Callable[..., Ranks]) -> None:
    """The creation of a group counts as an operation without data."""
    ranks = ranks_of(2)
    for rank in range(2):
        ranks.call(rank, 0, 10, "init_process_group", kind=RecordKind.RENDEZVOUS, message_bytes=0)
    ranks.call(1, 20, 30, "new_group", kind=RecordKind.RENDEZVOUS, message_bytes=0, sequence=2)
    found = statistics_of(ranks.histories())
    [difference] = found.differences
    assert (difference.operation, [count.calls for count in difference.counts]) == ("new_group", [0, 1])
    assert {row.size_class for row in found.rows} == {"none"}
    assert found.groups == ()
    assert [totals.communicating_ns for totals in found.ranks] == [None, None]


def test_groups_that_cannot_be_compared(ranks_of: Callable[..., Ranks]) -> None:
    """In a group that was in use before recording began, ranks count from different positions."""
    ranks = ranks_of(2)
    joined_late = dataclasses.replace(ranks.group, aligned=False)
    ranks.call(0, 0, 10, group=joined_late)
    found = statistics_of(ranks.histories())
    assert (found.differences, found.groups, found.rows[0].split) == ((), (), 0)
    ranks.call(0, 20, 30, "barrier", group=ranks.group)
    ranks.call(1, 20, 30, "barrier", group=ranks.group)
    assert statistics_of(ranks.histories()).groups == ()


def test_calls_that_the_ring_has_lost(ranks_of: Callable[..., Ranks]) -> None:
    """Counts are compared from the first position that all members still have: earlier differences are lost calls."""
    ranks = ranks_of(2, capacity=64)
    for sequence in range(1, 101):
        ranks.call(0, sequence, sequence + 0.5, sequence=sequence)
        ranks.call(0, sequence, sequence + 0.5, "barrier", group=dataclasses.replace(ranks.group, nth=1, ranks=(0,)))
        ranks.call(1, sequence, sequence + 0.5, sequence=sequence)
    histories = ranks.histories()
    assert [history.lost > 0 for history in histories] == [True, True]
    found = statistics_of(histories)
    held = next(row.calls_by_rank for row in found.rows if row.operation == "all_reduce")
    assert held[0] < held[1] < 100
    assert found.differences == ()
    [group] = [group for group in found.groups if group.group.members == 2]
    assert (group.first_sequence, group.last_sequence, group.complete, group.incomplete) == (
        101 - held[0],
        100,
        held[0],
        0,
    )
    assert [totals.lost for totals in found.ranks] == [history.lost for history in histories]
    ranks.call(1, 200, sequence=101)
    [difference] = statistics_of(ranks.histories()).differences
    assert [count.calls for count in difference.counts] == [held[0], held[0] + 1]
    assert difference.first_sequence == 101 - held[0]


def test_groups_of_one_name(ranks_of: Callable[..., Ranks]) -> None:
    """Groups with the same name are distinguished by their ranks, and groups with the same ranks by their keys."""
    ranks = ranks_of(3)
    groups = [
        dataclasses.replace(ranks.group, ranks=members, nth=nth)
        for members, nth in (((0, 1), 0), ((0, 1), 1), ((0, 2), 0))
    ]
    for group in groups:
        for rank in group.ranks:
            ranks.call(rank, 0, 10, group=group)
    assert [row.group.name for row in statistics_of(ranks.histories()).rows if row.group is not None] == [
        f"default_pg (0-1) {groups[0].key}",
        f"default_pg (0-1) {groups[1].key}",
        "default_pg (0,2)",
    ]
