"""Lists of numbers, and shapes and types of tensors, as traces have them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final, cast

from otel_torchdist.model.collectives import EXCHANGES
from otel_torchdist.sources.profiles.names import dtype_of

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


MAX_TENSORS: Final = 1_024
MAX_DIMENSIONS: Final = 16
MAX_SIZE: Final = 1 << 48

Shapes = tuple[tuple[int, ...], ...]


def shapes_at(dims: Any, place: int, elements: int | None = None) -> Shapes:
    """Return the shapes of the tensor, or of the list of tensors, at a place of an operator's arguments.

    Args:
        dims: What is recorded: for each argument a shape, or a list of shapes.
        place: Which argument.
        elements: How many elements there are, if that is known: shapes that contradict it do not count.

    Returns:
        The shapes; empty if they are not recorded.
    """
    if not isinstance(dims, list) or place >= len(cast(list[Any], dims)):
        return ()
    found = _shapes(cast(list[Any], dims)[place])
    if elements is not None and sum(map(math.prod, found)) != elements:
        return ()
    return found


def _shapes(part: Any) -> Shapes:
    if not isinstance(part, list):
        return ()
    items = cast(list[Any], part)
    if not any(isinstance(item, list) for item in items):
        shape = _shape(items)
        return (shape,) if shape is not None else ()
    shapes = [_shape(item) for item in items[: MAX_TENSORS + 1]]
    if len(shapes) > MAX_TENSORS or None in shapes:
        return ()
    return tuple(cast(list[tuple[int, ...]], shapes))


def _shape(part: Any) -> tuple[int, ...] | None:
    if not isinstance(part, list) or len(cast(list[Any], part)) > MAX_DIMENSIONS:
        return None
    sizes = cast(list[Any], part)
    if not all(type(size) is int and 0 <= size <= MAX_SIZE for size in sizes):
        return None
    return tuple(sizes)


def dtype_at(types: Any, place: int) -> str:
    """Return the type of the tensor at a place; '' if it is not recorded, as for lists of tensors."""
    if not isinstance(types, list) or place >= len(cast(list[Any], types)):
        return ""
    found = cast(list[Any], types)[place]
    is_type = isinstance(found, str) and found not in ("", "TensorList", "Scalar", "GenericList")
    return dtype_of(found) if is_type and len(found) < 64 else ""
