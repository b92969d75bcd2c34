"""Many ranks in few characters: `0-7,16`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

MAX_RANKS_TEXT: Final = 256
MAX_LISTED: Final = 65_536
_PART: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def compress_ranks(ranks: Iterable[int], max_text: int = MAX_RANKS_TEXT) -> str:
    """Write ranks as ascending ranges.

    Args:
        ranks: In any order; repeats count once.
        max_text: Characters after which the rest is only counted.

    Returns:
        `0-7,16`, or `0,2,4,… (509 more)` when it would be longer than `max_text`; '' for no rank.
    """
    ascending = sorted(set(ranks))
    text, written = "", 0
    # Neighbours have the same distance to their index.
    for _, run in groupby(enumerate(ascending), lambda item: item[1] - item[0]):
        members = [rank for _, rank in run]
        part = f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0])
        longer = f"{text},{part}" if text else part
        if len(longer) > max_text:
            return f"{text},… ({len(ascending) - written} more)"
        text, written = longer, written + len(members)
    return text


def listed_ranks(text: str) -> list[int]:
    """The ranks that a text of `compress_ranks` writes out, ascending; what it only counts is left out."""
    found: list[int] = []
    for match in filter(None, map(_PART.fullmatch, text.split(","))):
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, min(last + 1, first + MAX_LISTED - len(found)))
    return found


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 2`, or `ranks 2-3,7`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {compress_ranks(ranks)}"


def have(ranks: Sequence[int]) -> str:
    """The verb that goes with ranks: `has` or `have`."""
    return "has" if len(ranks) == 1 else "have"
