"""Ranks as text."""

from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.naming import MAX_RANKS_TEXT, MemberRank, compress_ranks, name_ranks


def expand(text: str) -> set[int]:
    """The ranks in a compressed range."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@given(st.sets(st.integers(0, 40)))
def test_nothing_is_lost(ranks: set[int]) -> None:
    """A range that fits lists exactly its ranks."""
    assert expand(compress_ranks(ranks)) == ranks


def test_form() -> None:
    """Neighbours are one range, in ascending order, whatever the order and the repeats."""
    assert compress_ranks([16, 1, 0, 2, 2]) == "0-2,16"
    assert compress_ranks(range(4096)) == "0-4095"
    assert compress_ranks([]) == ""


@given(st.sets(st.integers(0, 1_000_000), min_size=60, max_size=80))
def test_long_ranges_are_cut(ranks: set[int]) -> None:
    """A text that would be too long keeps whole ranges and counts the rest."""
    text = compress_ranks(ranks)
    if "more" not in text:
        assert expand(text) == ranks
        return
    kept, _, rest = text.partition(",… (")
    assert len(kept) <= MAX_RANKS_TEXT
    assert expand(kept) < ranks
    assert len(expand(kept)) + int(rest.removesuffix(" more)")) == len(ranks)


def test_processes_of_other_worlds() -> None:
    """They are numbers wherever ranks are, and in sentences they are what they are."""
    engine, other = MemberRank(4, "1 of transfer"), MemberRank(5, "2 of transfer")
    assert compress_ranks([0, 1, engine, other]) == "0-1,4-5"
    assert name_ranks([engine]) == f"rank {engine}" == "rank 1 of transfer"
    assert name_ranks([0, 1, engine, other]) == "ranks 0-1 and rank 1 of transfer and rank 2 of transfer"
    assert name_ranks([MemberRank(number, f"{number} of all") for number in range(6)]).endswith("3 of all and 2 more")
