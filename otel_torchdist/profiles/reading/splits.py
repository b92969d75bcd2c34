"""How an `all_to_all` is split, from the lists of rows that are recorded beside it; long ones are cut."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

MAX_ROWS: Final = 1 << 48
_LIST: Final = re.compile(r"\[?\s*(\d{1,15}(?:\s*,\s*\d{1,15})*)\s*\]?")
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,15}(?!\d)")


@lru_cache(maxsize=4_096)
def split_parts(operation: str, text: str, members: int) -> tuple[int, ...]:
    """Return the rows for each member; empty if they are not recorded, or not all of them.

    Args:
        operation: What was called.
        text: The list as it is recorded.
        members: Ranks of the group.
    """
    found = _LIST.fullmatch(text) if operation.startswith("all_to_all") else None
    parts = tuple(map(int, found[1].split(","))) if found is not None else ()
    return parts if len(parts) == members and max(parts) <= MAX_ROWS else ()


def is_uneven(operation: str, sent: int | None, received: int | None, parts: str, others: str) -> bool:
    """Whether members get parts of different size, or this rank receives more or less than it sends.

    Args:
        operation: What was called.
        sent: Elements that this rank sends, itself included.
        received: Elements that it receives.
        parts: The list of rows for each member as it is recorded, which may be cut.
        others: The same from each member.
    """
    if not operation.startswith("all_to_all"):
        return False
    differ = any(len({*_NUMBER.findall(text)}) > 1 for text in (parts, others))
    return differ or (sent is not None and received is not None and sent != received)
