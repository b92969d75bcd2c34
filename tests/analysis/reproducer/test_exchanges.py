"""Uneven exchanges in scripts: what is recorded of them, and what is assumed where it is not."""

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
    """How many rows one rank sends to another: never the same number twice, and none in one case."""
    return sender * SIZE + receiver


def exchanged(
    name: str = "all_to_all_single", unit: int = ROW, sent: Callable[[int, int], int] = rows
) -> RecordedWorld:
    """Ranks that have made an exchange and wait for rank 2 in the next one."""
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


def test_what_is_recorded() -> None:
    """Each rank sends what it sent and gets what the others sent it, also from the one that does not come."""
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
    """With gloo, lists have equal tensors only, so one tensor stands for an uneven list, and the script says so."""
    script = exchanged("all_to_all", unit=4).script()
    call = calls_of(script, 1)[0]
    assert (call.operation, call.shapes[:SIZE]) == ("all_to_all_single", ((3,), (4,), (5,)))
    assert any("all_to_all_single replaces the operation all_to_all," in fact for fact in script.facts)


def test_what_is_not_recorded() -> None:
    """Without the parts, as in dumps and in large groups, parts are even, and the script says so."""
    world, group = RecordedWorld(SIZE), all_ranks(SIZE)
    for rank in world.recorded[:2]:
        rank.enter(group, 0.0, "all_to_all_single", shape=(9,), message_bytes=36, splits=Splits((), 0, 48))
    script = world.script()
    assert not calls_of(script, 0)[0].is_uneven
    assert any("The split sizes of some exchanges are not recorded" in fact for fact in script.facts)


def test_one_rank_is_even() -> None:
    """A rank whose own parts are alike takes part with them; the uneven parts of the others reach it."""
    script = exchanged(sent=lambda sender, receiver: 2 if sender == 0 else rows(sender, receiver)).script()
    assert calls_of(script, 0)[0].shapes == ((2, 2), (2, 2), (2, 2), (2, 2), (3, 2), (6, 2))


def test_large_ones_shrink_alike() -> None:
    """Parts that need too much memory become smaller and flat, and still fit those of the other ranks."""
    script = exchanged(sent=lambda sender, receiver: rows(sender, receiver) << 24).script()
    calls = [calls_of(script, rank)[0] for rank in range(SIZE)]
    assert all(len(shape) == 1 for call in calls for shape in call.shapes)
    total = sum(shape[0] * 4 for call in calls for shape in call.shapes)
    assert total < 1.1 * sizes.MOST_BYTES
    assert calls[0].shapes[0] == (0,)
