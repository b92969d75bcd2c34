"""Lists of numbers that are recorded as text, as of ranks, and of how an `all_to_all` is split.

Those of more than 30 are cut: `[0, 1, …, 28, ..., 63]`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from otel_torchdist.model.collectives import EXCHANGES

MAX_TEXT: Final = 1 << 20
MAX_DIGITS: Final = 15


@lru_cache(maxsize=1_024)
def numbers_in(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `[0, 1]`; none if it is cut, or anything else."""
    if len(text) > MAX_TEXT:
        return ()
    parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    return tuple(map(int, parts)) if all(_is_number(part) for part in parts) else ()


@lru_cache(maxsize=1_024)
def differ(text: str) -> bool:
    """Return whether two numbers of a list differ, as far as it is not cut."""
    parts = (part.strip(" []") for part in text[:MAX_TEXT].split(","))
    return len({part for part in parts if _is_number(part)}) > 1


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= MAX_DIGITS


def split_parts(operation: str, rows: str, members: int) -> tuple[int, ...]:
    """Return the rows for each member; empty if they are not recorded, or not all of them.

    Args:
        operation: What was called.
        rows: The list as it is recorded.
        members: Ranks of the group.
    """
    parts = numbers_in(rows) if operation in EXCHANGES else ()
    return parts if len(parts) == members else ()


def is_uneven(operation: str, sent: int | None, received: int | None, rows: str, others: str) -> bool:
    """Whether members get parts of different size, or this rank receives more or less than it sends.

    Args:
        operation: What was called.
        sent: Elements that this rank sends, itself included.
        received: Elements that it receives.
        rows: The list of rows for each member as it is recorded, which may be cut.
        others: The same from each member.
    """
    if operation not in EXCHANGES:
        return False
    return differ(rows) or differ(others) or (sent is not None and received is not None and sent != received)
