"""Lists of numbers that are recorded as text. Those of more than 30 are cut: `[0, 1, …, 28, ..., 63]`."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

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
