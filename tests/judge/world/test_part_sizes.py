"""Mismatched sizes in exchanges: the worst pair, and a rank common to all mismatched pairs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.judge.world.part_sizes import Misfit, find_misfit, part_sizes
from otel_torchdist.model.calls import PartSizes
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.operations import Operation, Splits
from otel_torchdist.tape.records.splits import MAX_LISTED
from tests.support.worlds.fake_world import FakeRank, group_of

Matrix = list[list[int]]


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Generate the sizes that two to five ranks send to each other."""
    size = draw(st.integers(2, 5))
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size)
    return draw(st.lists(row, min_size=size, max_size=size))


def sizes_of(sent: Sequence[Sequence[int]]) -> dict[int, PartSizes]:
    """Return the records of ranks whose sizes fit, in rows of four bytes."""
    size = len(sent)
    return {
        rank: PartSizes(
            tuple(4 * part for part in sent[rank]), tuple(4 * sent[other][rank] for other in range(size)), 4
        )
        for rank in range(size)
    }


@given(matrices())
def test_what_fits(sent: Matrix) -> None:
    """Ranks that expect the sizes they are sent always fit."""
    assert find_misfit(range(len(sent)), sizes_of(sent)) is None


@given(matrices(), st.data())
def test_one_pair(sent: Matrix, data: st.DataObject) -> None:
    """If one size differs from the expected one, sender and receiver are named with both sizes."""
    size = len(sent)
    sender, receiver = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    sizes = sizes_of(sent)
    parts = [*sizes[sender].sent]
    parts[receiver] += 4
    sizes[sender] = sizes[sender]._replace(sent=tuple(parts))
    expected = 4 * sent[sender][receiver]
    ranks = tuple(sorted({sender, receiver}))
    assert find_misfit(range(size), sizes) == Misfit(sender, receiver, expected + 4, expected, 4, ranks, 1)


@given(matrices(), st.data())
def test_stale_counts(sent: Matrix, data: st.DataObject) -> None:
    """A rank whose expectations differ from several senders is named alone: it is in all mismatched pairs."""
    size = len(sent)
    stale = data.draw(st.integers(0, size - 1))
    sizes = sizes_of(sent)
    sizes[stale] = sizes[stale]._replace(expected=tuple(part + 4 for part in sizes[stale].expected))
    found = find_misfit(range(size), sizes)
    assert found is not None
    assert (found.ranks, found.receiver, found.pairs) == ((stale,), stale, size)


def test_ranks_of_a_group() -> None:
    """Sizes are in group order, but global ranks are named, even if a member is unknown."""
    sizes = sizes_of([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    by_rank = {11: sizes[0], 5: sizes[1]._replace(sent=(4, 20, 24))}
    found = find_misfit((11, 5, 7), by_rank)
    assert found is not None
    assert (found.sender, found.receiver, found.sent, found.expected) == (5, 11, 4, 16)


def test_two_equal_suspects() -> None:
    """Two ranks whose sizes differ in both directions are both named."""
    sizes = sizes_of([[1, 1, 1], [1, 1, 1], [1, 1, 1]])
    sizes |= {0: sizes[0]._replace(sent=(4, 8, 4)), 1: sizes[1]._replace(sent=(8, 4, 4))}
    found = find_misfit(range(3), sizes)
    assert found is not None
    assert (found.ranks, found.pairs) == ((0, 1), 2)


@pytest.mark.parametrize(
    ("splits", "flags", "message_bytes", "found"),
    [
        (None, Flag(0), 96, PartSizes((48, 48), (48, 48), 16)),
        (None, Flag(0), 97, None),
        (None, Flag.UNEVEN, 96, None),
        (Splits((32, 64), 64, 96, (48, 48), 16), Flag.UNEVEN, 96, PartSizes((32, 64), (48, 48), 16)),
        (Splits((32, 64), 64, 96), Flag.UNEVEN, 96, None),
        (Splits((), 64, 96), Flag.UNEVEN, 96, None),
    ],
)
def test_as_recorded(splits: Splits | None, flags: Flag, message_bytes: int, found: PartSizes | None) -> None:
    """An exchange without splits is even. If splits were lost, or are unknown on a side, no sizes are known."""
    rank = FakeRank(0)
    number = rank.enter(
        group_of(0, 1), 1.0, "all_to_all_single", flags=flags, message_bytes=message_bytes, splits=splits
    )
    signature = SignatureName("all_to_all_single", "", ((6, 4),), ("float32",), "cpu", 1)
    record = record_of(rank, number)
    assert part_sizes(record, signature, 2) == found
    assert part_sizes(record, None, 2) is None
    assert part_sizes(record, signature, MAX_LISTED + 1) is None


def record_of(rank: FakeRank, number: int) -> Operation:
    """Build the record of an open operation."""
    return rank.open[number].record


def test_gathered() -> None:
    """In a gather, each member gets the whole input. Ranks with outputs of other sizes are not compared."""
    rank, group = FakeRank(0), group_of(0, 1, 2)
    signature = SignatureName("all_gather", "", ((6, 4),), ("float32",), "cpu", 1)
    even, uneven = (
        record_of(rank, rank.enter(group, 1.0, "all_gather", flags=flags, message_bytes=96, blocking=False))
        for flags in (Flag(0), Flag.UNEVEN)
    )
    assert part_sizes(even, signature, 3) == PartSizes((96,) * 3, (96,) * 3, 16)
    assert part_sizes(uneven, signature, 3) is None
