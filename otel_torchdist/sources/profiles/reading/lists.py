"""Decodes lists of numbers, and shapes and dtypes of tensors, in traces."""

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
    """Return the numbers of a list such as `[0, 1]`; none in a truncated list or another text."""
    if len(text) > MAX_TEXT:
        return ()
    parts = [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
    return tuple(map(int, parts)) if all(_is_number(part) for part in parts) else ()


@lru_cache(maxsize=1_024)
def differ(text: str) -> bool:
    """Return whether two numbers of a list differ. The list may be truncated."""
    parts = (part.strip(" []") for part in text[:MAX_TEXT].split(","))
    return len({part for part in parts if _is_number(part)}) > 1


def _is_number(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= MAX_DIGITS


def split_parts(operation: str, rows: str, members: int) -> tuple[int, ...]:
    """Return the rows for each member of an exchange; empty if the list is missing or truncated.

    Args:
        operation: Name of the operation.
        rows: The recorded list.
        members: Number of ranks of the group.
    """
    parts = numbers_in(rows) if operation in EXCHANGES else ()
    return parts if len(parts) == members else ()


def is_uneven(operation: str, sent: int | None, received: int | None, sent_rows: str, received_rows: str) -> bool:
    """Return whether an exchange has parts of different sizes, or this rank receives a different total than it sends.

    Args:
        operation: Name of the operation.
        sent: Elements that this rank sends, including to itself.
        received: Elements that this rank receives.
        sent_rows: The recorded list of rows sent to each member, which may be truncated.
        received_rows: The recorded list of rows received from each member, which may be truncated.
    """
    if operation not in EXCHANGES:
        return False
    return (
        differ(sent_rows) or differ(received_rows) or (sent is not None and received is not None and sent != received)
    )


MAX_TENSORS: Final = 1_024
MAX_DIMENSIONS: Final = 16
MAX_SIZE: Final = 1 << 48

Shapes = tuple[tuple[int, ...], ...]


def shapes_at(dims: Any, index: int, elements: int | None = None) -> Shapes:
    """Return the shapes of an operator's argument, a tensor or a list of tensors.

    Args:
        dims: The recorded shapes: for each argument a shape, or a list of shapes.
        index: Index of the argument.
        elements: Number of elements, or None if unknown. Shapes that contradict it are discarded.

    Returns:
        The shapes; empty if not recorded.
    """
    if not isinstance(dims, list) or index >= len(cast(list[Any], dims)):
        return ()
    shapes = _shapes(cast(list[Any], dims)[index])
    if elements is not None and sum(map(math.prod, shapes)) != elements:
        return ()
    return shapes


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


def dtype_at(types: Any, index: int) -> str:
    """Return the dtype of an operator's argument; '' if not recorded, as for lists of tensors."""
    if not isinstance(types, list) or index >= len(cast(list[Any], types)):
        return ""
    recorded = cast(list[Any], types)[index]
    is_type = isinstance(recorded, str) and recorded not in ("", "TensorList", "Scalar", "GenericList")
    return dtype_of(recorded) if is_type and len(recorded) < 64 else ""
