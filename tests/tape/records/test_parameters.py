"""Sums of checksums: from those of two ranks it follows which parameter differs, and never a wrong one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.model.numerics import DifferingRange
from otel_torchdist.tape.records.numerics import WORDS, differing_indices, mix_checksum, sum_checksums

Sums = tuple[int, tuple[int, ...]]


def sums_of(count: int, changed: dict[int, int] | None = None) -> Sums:
    """Those of a rank, some of whose parameters have another checksum."""
    checksums = {place: 7 * place for place in range(count)} | (changed or {})
    return sum_checksums([mix_checksum(checksums[place], place) for place in range(count)])


@given(st.integers(1, 3_000), st.data())
def test_one_parameter_differs(count: int, data: st.DataObject) -> None:
    """Its place is known exactly, wherever it is."""
    place = data.draw(st.integers(0, count - 1))
    here, there = sums_of(count, {place: -1}), sums_of(count)
    assert all(0 <= word < 1 << 48 for word in (here[0], *here[1]))
    assert differing_indices(here, there, count) in (
        DifferingRange(place, place, is_single=True),
        None if count > 1_024 else 0,
    )


@given(st.integers(2, 1_024), st.data())
def test_several_parameters_differ(count: int, data: st.DataObject) -> None:
    """They are between the first and the last place, and no single one is named."""
    places = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=8))
    found = differing_indices(sums_of(count, dict.fromkeys(places, -1)), sums_of(count), count)
    assert found is not None
    assert not found.is_single
    assert found.first <= min(places) < max(places) <= found.last


def test_all_parameters_differ() -> None:
    """Then they may be anywhere."""
    changed = dict.fromkeys(range(100), -1)
    assert differing_indices(sums_of(100, changed), sums_of(100), 100) == DifferingRange(0, 99, is_single=False)


def test_many_parameters() -> None:
    """A hundred thousand parameters, one of which differs, or two next to each other."""
    count, generator = 100_000, random.Random(3)
    there = sums_of(count)
    for place in generator.sample(range(count - 1), 3):
        assert differing_indices(sums_of(count, {place: -1}), there, count) == DifferingRange(
            place, place, is_single=True
        )
        found = differing_indices(sums_of(count, {place: -1, place + 1: -2}), there, count)
        assert found is not None
        assert (found.first <= place < found.last, found.is_single) == (True, False)


def test_equal_and_damaged_sums() -> None:
    """There is no answer where nothing differs, words are missing, or the number of parameters is impossible."""
    sums = sums_of(5)
    assert differing_indices(sums, sums, 5) is None
    other = sums_of(5, {2: 0})
    assert differing_indices(sums, (other[0], other[1][: WORDS - 1]), 5) is None
    assert differing_indices(sums, other, 0) is None
    assert differing_indices(sums, other, 1 << 30) is None
    assert differing_indices(sums_of(1), sums_of(1, {0: -1}), 1) == DifferingRange(0, 0, is_single=True)


def test_exchanged_parameters() -> None:
    """Two that have changed places differ, unless nothing should distinguish them."""
    assert (
        sum_checksums([mix_checksum(1, 0), mix_checksum(2, 1)])[0]
        != sum_checksums([mix_checksum(2, 0), mix_checksum(1, 1)])[0]
    )
    assert (
        sum_checksums([mix_checksum(1, 0), mix_checksum(2, 0)])[0]
        == sum_checksums([mix_checksum(2, 0), mix_checksum(1, 0)])[0]
    )
