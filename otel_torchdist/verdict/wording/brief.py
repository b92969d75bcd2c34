"""Keeps the sentence that is read first short: names are cut until it fits, and what does not fit comes after it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MOST: Final = 200
"""Characters of the first sentence: what a terminal shows in two lines, and a page in one."""
WITH_PLACE: Final = 250
"""The same where it would else lose its second clause, which says where the rank is."""
ALONE: Final = 400
"""The same where its first clause has that much to say, such as the operations of all ranks of a circle."""
_WIDE: Final = (48, 40, 32)
"""Longest name, tried in this order. Rather than cut names further, the sentence gets a little longer."""
_NARROW: Final = (24, 18, 12)
"""The same for names that are very long. What remains still tells two lines of a file apart."""
_PLACE: Final = re.compile(r":\d+\W*$")
"""The end of `train.py:41`, which is cut to no less than the first width of `_NARROW`: a reader looks for it."""


def compose(first: Sequence[str], more: Sequence[str]) -> str:
    """Join clauses to a short sentence and a second one.

    Args:
        first: Clauses of the first sentence, the most important one first; that one is never moved.
        more: What the second one says.
    """
    for count in range(len(first), 0, -1):
        lead = _shortened("; ".join(first[:count]), _NARROW if count == 1 else _NARROW[:1])
        if len(lead) <= (WITH_PLACE if count == 2 else MOST) or count == 1:
            rest = "; ".join([*first[count:], *more])
            return f"{lead}. {rest[0].upper()}{rest[1:]}" if rest else lead
    return "; ".join(more)


def _shortened(text: str, narrow: Sequence[int]) -> str:
    """Cut the names in a text, the middle of the longest ones first, until it is short. Paths are for copying."""
    wide = [text, *(_with_names_of(text, width) for width in _WIDE)]
    cut = [_with_names_of(text, width) for width in narrow]
    tries = ((wide, MOST), (wide, WITH_PLACE), (cut, WITH_PLACE), ([*wide, *cut], ALONE))
    return next((one for found, most in tries for one in found if len(one) <= most), cut[-1])


def _with_names_of(text: str, width: int) -> str:
    return re.sub(rf"(?<![^\s(])[^\s()/][^\s()]{{{width},}}", lambda name: _cut(name[0], _least(name[0], width)), text)


def _least(name: str, width: int) -> int:
    return max(width, _NARROW[0]) if _PLACE.search(name) else width


def _cut(name: str, width: int) -> str:
    if len(name) <= width:
        return name
    kept = width - 1
    return f"{name[: kept // 2]}…{name[-(kept - kept // 2) :]}"
