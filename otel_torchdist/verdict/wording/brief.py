"""Keeps the sentence that is read first short: names are cut until it fits, and what does not fit comes after it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MOST: Final = 200
"""Characters of the first sentence: what a terminal shows in two lines, and a page in one."""
_WIDTHS: Final = (48, 40, 32, 24, 18, 12)
"""How long a name may be, tried in this order. What remains of the shortest still tells two lines of a file apart."""


def compose(first: Sequence[str], more: Sequence[str]) -> str:
    """Join clauses to a short sentence and a second one.

    Args:
        first: Clauses of the first sentence, the most important one first; that one is never moved.
        more: What the second one says.
    """
    for count in range(len(first), 0, -1):
        lead = _shortened("; ".join(first[:count]))
        if len(lead) <= MOST or count == 1:
            rest = "; ".join([*first[count:], *more])
            return f"{lead}. {rest[0].upper()}{rest[1:]}" if rest else lead
    return "; ".join(more)


_LONG: Final = re.compile(rf"[^\s()]{{{_WIDTHS[0] + 1},}}")


def _shortened(text: str) -> str:
    """Cut the names in a text, the middle of the longest ones first, until it is short.

    A text of many clauses stays long even so: then its names are worth more than the few characters.
    """
    tried = text
    for width in _WIDTHS:
        if len(tried) <= MOST:
            return tried
        tried = re.sub(rf"[^\s()]{{{width + 1},}}", lambda name, width=width: _cut(name[0], width), text)
    return tried if len(tried) <= MOST else re.sub(_LONG, lambda name: _cut(name[0], _WIDTHS[0]), text)


def _cut(name: str, width: int) -> str:
    kept = width - 1
    return f"{name[: kept // 2]}…{name[-(kept - kept // 2) :]}"
