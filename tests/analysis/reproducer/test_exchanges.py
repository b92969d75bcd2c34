"""Uneven exchanges in scripts: recorded splits, and assumptions for unrecorded ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from otel_torchdist.analysis.reproducer import sizes
from otel_torchdist.model.operations import Splits
from tests.analysis.reproducer.test_planning import RecordedWorld, all_ranks, calls_of

Rows = Callable[[int, int], int]

SIZE: Final = 3
ROW: Final = 8
"""Bytes of a row of two elements."""


def rows(sender: int, receiver: int) -> int:
    """Return the number of rows that one rank sends to another: unique for each pair, and 0 for one pair."""
    return sender * SIZE + receiver


def exchanged(
    name: str = "all_to_all_single", unit: int = ROW, sent: Callable[[int, int], int] = rows
) -> RecordedWorld:
    """Return a world whose ranks made an exchange and wait for rank 2 in the next one."""
    world, group = RecordedWorld(SIZE), all_ranks(SIZE)
    for at_s in (0.0, 1.0):
        for rank in world.recorded[: SIZE if at_s == 0.0 else 2]:
            parts = [sent(rank.rank, other) * unit for other in range(SIZE)]
            splits = Splits(tuple(parts), max(parts), sum(sent(other, rank.rank) for other in range(SIZE)) * unit)
            arguments = {"shape": (sum(parts) // unit, 2), "message_bytes": sum(parts), "splits": splits}
            if at_s:
                rank.enter(group, at_s, name, **arguments)
            else:
                rank.call(group, at_s, name, **arguments)
    return world


def test_recorded_splits() -> None:
    """Each rank sends and receives the recorded parts, also from the absent rank."""
    script = exchanged().script()
    for rank in range(SIZE):
        call = calls_of(script, rank)[0]
        assert call.is_uneven
        assert call.shapes[:SIZE] == tuple((rows(rank, other), 2) for other in range(SIZE))
        assert call.shapes[SIZE:] == tuple((rows(other, rank), 2) for other in range(SIZE))
    for rank in (0, 1):
        before, hanging = calls_of(script, rank)
        assert hanging == replace(before, hangs=True)


def test_lists() -> None:
    """A tensor replaces an uneven list, because gloo supports only lists of equal tensors, and the script says so."""
    script = exchanged("all_to_all", unit=4).script()
    call = calls_of(script, 1)[0]
    assert (call.operation, call.shapes[:SIZE]) == ("all_to_all_single", ((3,), (4,), (5,)))
    assert any("all_to_all_single replaces the operation all_to_all," in fact for fact in script.facts)


def test_unrecorded_splits() -> None:
    """Without recorded splits, as in dumps and large groups, parts are even, and the script says so."""
    world, group = RecordedWorld(SIZE), all_ranks(SIZE)
    for rank in world.recorded[:2]:
        rank.enter(group, 0.0, "all_to_all_single", shape=(9,), message_bytes=36, splits=Splits((), 0, 48))
    script = world.script()
    assert not calls_of(script, 0)[0].is_uneven
    assert any("The split sizes of some exchanges are not recorded" in fact for fact in script.facts)


def test_one_rank_is_even() -> None:
    """A rank that sends even parts receives the uneven parts of the others."""
    script = exchanged(sent=lambda sender, receiver: 2 if sender == 0 else rows(sender, receiver)).script()
    assert calls_of(script, 0)[0].shapes == ((2, 2), (2, 2), (2, 2), (2, 2), (3, 2), (6, 2))


def test_large_exchanges_shrink_consistently() -> None:
    """Parts that need too much memory become smaller and flat, and still match the parts of the other ranks."""
    script = exchanged(sent=lambda sender, receiver: rows(sender, receiver) << 24).script()
    calls = [calls_of(script, rank)[0] for rank in range(SIZE)]
    assert all(len(shape) == 1 for call in calls for shape in call.shapes)
    total = sum(shape[0] * 4 for call in calls for shape in call.shapes)
    assert total < 1.1 * sizes.MAX_BYTES
    assert calls[0].shapes[0] == (0,)
