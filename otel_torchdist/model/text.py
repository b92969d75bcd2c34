"""Formats ranks, durations and sizes for people, and makes names of a job printable.

A rank may give its groups, functions and files any name, and another user's rank may use such a name to forge log
lines, control the terminal, or reverse the direction of text. `readable` is the one place that prevents this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import PurePath
from typing import Final

# --- ranks ------------------------------------------------------------------------------------------------------------


class MemberRank(int):
    """A process of another world, as a number that no rank of the run has.

    A run may share a standalone process group with such processes. Only texts show that they belong to another world:
    `rank 1 of transfer`.
    """

    label: str

    def __new__(cls, number: int, label: str) -> MemberRank:
        """Create a rank with a number and a label such as `1 of transfer`."""
        rank = super().__new__(cls, number)
        rank.label = label
        return rank

    def __str__(self) -> str:
        """Return the label."""
        return self.label


def plain_rank(rank: object) -> int:
    """Return a `MemberRank` as a plain number, for encoders that accept only plain numbers.

    Raises:
        TypeError: The value is not a `MemberRank`.
    """
    if isinstance(rank, MemberRank):
        return int(rank)
    raise TypeError(f"{type(rank).__name__} cannot be encoded")


MAX_RANKS_TEXT: Final = 256
MAX_LISTED: Final = 65_536
MAX_MEMBERS: Final = 4
"""Upper bound on the processes of other worlds that a text names."""
_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def compress_ranks(ranks: Iterable[int], max_text: int = MAX_RANKS_TEXT) -> str:
    """Write ranks as ascending ranges.

    Args:
        ranks: In any order; repeats count once.
        max_text: Upper bound on the characters of the list. Further ranks are only counted.

    Returns:
        `0-7,16`, or `0,2,4,… (509 more)` if the list would be longer than `max_text`; '' for no rank.
    """
    ascending = sorted(set(ranks))
    text, written = "", 0
    # Consecutive ranks have the same difference to their index.
    for _, run in groupby(enumerate(ascending), lambda item: item[1] - item[0]):
        members = [rank for _, rank in run]
        part = f"{members[0]:d}-{members[-1]:d}" if len(members) > 1 else f"{members[0]:d}"
        longer = f"{text},{part}" if text else part
        if len(longer) > max_text:
            return f"{text},… ({len(ascending) - written} more)"
        text, written = longer, written + len(members)
    return text


def listed_ranks(text: str) -> list[int]:
    """Parse the output of `compress_ranks` into ascending ranks. Ranks that it only counts are left out."""
    ranks: list[int] = []
    for match in filter(None, map(_PART.fullmatch, text.split(","))):
        first, last = int(match[1]), int(match[2] or match[1])
        ranks += range(first, min(last + 1, first + MAX_LISTED - len(ranks)))
    return ranks


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence: `rank 2`, `ranks 2-3,7`, or `ranks 2-3 and rank 1 of transfer` with another world's."""
    of_other_worlds = [rank for rank in ranks if isinstance(rank, MemberRank)]
    if of_other_worlds:
        of_run = [rank for rank in ranks if not isinstance(rank, MemberRank)]
        named = [*([name_ranks(of_run)] if of_run else []), *(f"rank {rank}" for rank in of_other_worlds[:MAX_MEMBERS])]
        more = len(of_other_worlds) - MAX_MEMBERS
        return " and ".join([*named, f"{more} more"] if more > 0 else named)
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {compress_ranks(ranks)}"


def have(ranks: Sequence[int]) -> str:
    """Return the verb for these ranks: `has` or `have`."""
    return "has" if len(ranks) == 1 else "have"


# --- names of a job ---------------------------------------------------------------------------------------------------


MAX_SHOWN: Final = 4096
"""Upper bound on the characters of one string: the longest path that Linux allows."""


def readable(text: str, most: int = MAX_SHOWN) -> str:
    r"""Return the text with unprintable characters escaped as in a Python literal, such as `\x1b` or `\u202e`.

    Lone surrogates, as in the path of a file whose name is not UTF-8, cannot be encoded and are escaped too.
    """
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def name_caller(function: str, file: str) -> str:
    """Name the outermost function of a thread. The name is the same in every process: `save (train.py)`."""
    return f"{function} ({PurePath(file).name})"


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


# --- durations and sizes ----------------------------------------------------------------------------------------------


_TIME_UNITS: Final = ((1_000, "ns"), (1_000_000, "µs"), (1_000_000_000, "ms"))
_DECIMAL_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def duration(ns: int | None) -> str:
    """Format a duration with three digits: `812 µs`, `4.03 ms`, `61.0 s`; '' for None."""
    if ns is None:
        return ""
    ns = max(ns, 0)
    for limit, unit in _TIME_UNITS:
        if ns < 0.9995 * limit:
            return f"{_three_digits(ns * 1_000 / limit)} {unit}" if unit != "ns" else f"{ns} ns"
    return f"{_three_digits(ns / 1e9)} s"


_LONG_S: Final = 100
"""Elapsed times from here on are written in two whole units."""
_LONG_UNITS: Final = ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s"))


def seconds(length_s: float, digits: int = 1) -> str:
    """Format an elapsed time for a sentence: `12.0 s`, `2 min 50 s`, `3 h 20 min`, `2 d 4 h`. Never below zero.

    Clock differences between nodes, and late observations, may put an end before its start.
    """
    length_s = elapsed(length_s)
    if length_s < _LONG_S:
        return f"{length_s:.{digits}f} s"
    whole = round(length_s)
    size, unit, part, part_unit = next(row for row in _LONG_UNITS if whole >= row[0])
    return f"{whole // size} {unit} {whole % size // part} {part_unit}"


def elapsed(length: float) -> float:
    """Return a difference of two times, in any unit, or 0 if it is negative."""
    return length if length > 0 else 0.0


def amount(count: int) -> str:
    """Format bytes with three digits and powers of two: `16 B`, `4.00 KiB`, `1.25 GiB`."""
    size, power = float(count), 0
    while size >= 999.5 and power < len(_BINARY_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{_three_digits(size)} {_BINARY_UNITS[power]}" if power else f"{count} B"


def per_second(bytes_per_second: float) -> str:
    """Format bytes per second with three digits and powers of ten, as nccl-tests does: `24.1 GB`."""
    size, power = bytes_per_second, 0
    while size >= 999.5 and power < len(_DECIMAL_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{_three_digits(size)} {_DECIMAL_UNITS[power]}"


def decimal_size(count: int) -> str:
    """Format the size of files with three digits and powers of ten, as disks are sold: `410 MB`."""
    return per_second(count) if count >= 1000 else f"{count} B"


def share(part: int, whole: int) -> str:
    """Format a share: `63%`; '' if the whole is 0."""
    return f"{part / whole:.0%}" if whole else ""


def _three_digits(number: float) -> str:
    if number >= 99.95:
        return f"{number:,.0f}"
    if number >= 9.995:
        return f"{number:.1f}"
    return f"{number:.2f}"


_LARGER: Final = "larger"
_SIZE_CLASSES: Final = {12: "4KiB", 16: "64KiB", 20: "1MiB", 24: "16MiB", 28: "256MiB"}
"""Names of the size classes, by the exponent of the largest size in each, a power of two."""
_MAX_BITS: Final = max(_SIZE_CLASSES) + 1
_CLASS_BY_BITS: Final = tuple(
    next((name for power, name in _SIZE_CLASSES.items() if bits <= power), _LARGER) for bits in range(_MAX_BITS + 1)
)


def size_class(size: int) -> str:
    """Return the size class of a message: `4KiB` for sizes up to 4,096 bytes, and so on."""
    return _CLASS_BY_BITS[min((size - 1).bit_length(), _MAX_BITS)]


_DIGITS: Final = re.compile(r"\d+")


@lru_cache(maxsize=1_024)
def item_bytes(dtype: str) -> int:
    """Return the bytes of an element. torch's type names contain the bits, except for `bool`."""
    bits = _DIGITS.search(dtype)
    return max(int(bits[0]) // 8, 1) if bits is not None and len(bits[0]) < 4 else 1
