"""Columns of calls, and the meetings of ranks in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from otel_torchdist.model.calls import last_of
from otel_torchdist.model.kinds import How
from otel_torchdist.sources.history.call_table import CallTable, table_of
from otel_torchdist.sources.history.meetings import Meeting, shared_channels
from tests.analysis.statistics.histories import MS, Ranks


@pytest.fixture
def ranks(memory: Path) -> Iterator[Ranks]:
    """Three ranks."""
    made = Ranks(memory)
    yield made
    made.close()


def meetings_of(ranks: Ranks) -> list[Meeting]:
    """All meetings of the ranks, in order."""
    table = table_of(ranks.histories())
    return [meeting for shared in shared_channels(table.ranks) for meeting in shared.meetings()]


@pytest.mark.parametrize(
    ("operation", "awaited"),
    [
        ("all_reduce", (3, 3, 3)),
        ("broadcast", (2, None, 2)),
        ("reduce", (None, 3, None)),
        ("new_window", (None, None, None)),
    ],
)
def test_whom_ranks_wait_for(ranks: Ranks, operation: str, awaited: Sequence[int | None]) -> None:
    """Everyone waits for the last, for the root, or only the root waits, as the operation says; here rank 1 is it."""
    for rank, at_ms in enumerate((1, 2, 3)):
        ranks.call(rank, at_ms, 4, operation, peer=1)
    [meeting] = meetings_of(ranks)
    assert meeting.awaited() == [None if at_ms is None else at_ms * MS for at_ms in awaited]
    assert (meeting.last() is not None) == (operation == "all_reduce")


def test_receivers_wait(ranks: Ranks) -> None:
    """The receiver of a message waits for its sender, which waits for nobody."""
    ranks.send(0, 1, 5, 6)
    ranks.receive(0, 1, 1, 6, how=How.WAIT)
    [meeting] = meetings_of(ranks)
    assert meeting.awaited() == [None, 5 * MS]


def test_different_operations(ranks: Ranks) -> None:
    """Nothing is known about waiting where members have called different operations."""
    for rank, operation in enumerate(("all_reduce", "all_reduce", "broadcast")):
        ranks.call(rank, rank, 4, operation)
    [meeting] = meetings_of(ranks)
    assert meeting.awaited() == [None] * 3


def test_missing_positions(ranks: Ranks) -> None:
    """A meeting that a rank has skipped or not reached has it as missing, and no arrivals to compare."""
    for rank, sequences in enumerate(((1, 2, 3, 4), (1, 2, 4), (1, 2, 3))):
        for sequence in sequences:
            ranks.call(rank, sequence, sequence + 0.5, sequence=sequence)
    found = meetings_of(ranks)
    assert [(one.sequence, one.missing, one.arrived is None) for one in found] == [
        (1, (), False),
        (2, (), False),
        (3, (1,), True),
        (4, (2,), True),
    ]


def test_largest_positions(ranks: Ranks) -> None:
    """Positions next to the bound of a column are those of a damaged or forged record, and are read like others."""
    largest = (1 << 62) - 1
    for rank in range(3):
        for at_ms, sequence in ((1, largest), (2, 5)):
            ranks.call(rank, at_ms, at_ms + 0.5, sequence=sequence)
    assert [one.sequence for one in meetings_of(ranks)] == [5, largest]


def test_last_arrival() -> None:
    """The last rank is late by what the last but one waits for it; alone, nobody is last."""
    assert last_of((5, 9, 7)) == (1, 2)
    assert last_of((9, 9)) == (0, 0)
    assert last_of((9,)) is None


def test_groups_are_shared(ranks: Ranks) -> None:
    """Each rank has a group object of its own, of which the table keeps one."""
    for rank in range(3):
        ranks.call(rank, 1, 2)
    table = CallTable()
    calls = [table.columns_of(history) for history in ranks.histories()]
    assert len({id(group) for one in calls for group in one.groups.values()}) == 1


def test_condensed_calls(ranks: Ranks) -> None:
    """The table keeps what meetings need of a rank, and no column that only readers of one rank need."""
    ranks.call(0, 1, 2, waits_ms=1.5, how=How.WAIT)
    table = CallTable()
    calls = table.columns_of(ranks.histories()[0])
    assert (calls.blocked_interval(0), calls.wait_ns(0)) == ((1.5 * MS, 2 * MS), 0.5 * MS)
    table.keep(calls)
    assert (len(table.ranks[0]), len(calls.returned), calls.known_groups) == (1, 0, ())
