"""Which two ranks of an exchange do not fit together, and which rank is part of all such pairs."""

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
    """What each rank of two to five sends to each."""
    size = draw(st.integers(2, 5))
    row = st.lists(st.integers(0, 9), min_size=size, max_size=size)
    return draw(st.lists(row, min_size=size, max_size=size))


def sizes_of(sent: Sequence[Sequence[int]]) -> dict[int, PartSizes]:
    """What ranks record that expect what they are sent, in bytes of rows of four."""
    size = len(sent)
    return {
        rank: PartSizes(
            tuple(4 * part for part in sent[rank]), tuple(4 * sent[other][rank] for other in range(size)), 4
        )
        for rank in range(size)
    }


@given(matrices())
def test_what_fits(sent: Matrix) -> None:
    """Ranks that expect what they are sent fit, whatever they send."""
    assert find_misfit(range(len(sent)), sizes_of(sent)) is None


@given(matrices(), st.data())
def test_one_pair(sent: Matrix, data: st.DataObject) -> None:
    """A sender that sends one rank something else is named with that rank, and with both sizes."""
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
    """A rank that expects what several others do not send is named alone: all pairs that do not fit have it."""
    size = len(sent)
    stale = data.draw(st.integers(0, size - 1))
    sizes = sizes_of(sent)
    sizes[stale] = sizes[stale]._replace(expected=tuple(part + 4 for part in sizes[stale].expected))
    found = find_misfit(range(size), sizes)
    assert found is not None
    assert (found.ranks, found.receiver, found.pairs) == ((stale,), stale, size)


def test_ranks_of_a_group() -> None:
    """Sizes are in the order of the group; the ranks that are named are global ones, also if a member is unknown."""
    sizes = sizes_of([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    by_rank = {11: sizes[0], 5: sizes[1]._replace(sent=(4, 20, 24))}
    found = find_misfit((11, 5, 7), by_rank)
    assert found is not None
    assert (found.sender, found.receiver, found.sent, found.expected) == (5, 11, 4, 16)


def test_two_equal_suspects() -> None:
    """Two ranks that do not fit each other in both directions are both named."""
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
    """An exchange without splits is even; of one whose splits were lost, or are not known on both sides, nothing is."""
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
    """The record of an open operation."""
    return rank.open[number].record


def test_gathered() -> None:
    """What a rank gathers goes to each member whole; one that expects other sizes than its own is not compared."""
    rank, group = FakeRank(0), group_of(0, 1, 2)
    signature = SignatureName("all_gather", "", ((6, 4),), ("float32",), "cpu", 1)
    even, uneven = (
        record_of(rank, rank.enter(group, 1.0, "all_gather", flags=flags, message_bytes=96, blocking=False))
        for flags in (Flag(0), Flag.UNEVEN)
    )
    assert part_sizes(even, signature, 3) == PartSizes((96,) * 3, (96,) * 3, 16)
    assert part_sizes(uneven, signature, 3) is None
