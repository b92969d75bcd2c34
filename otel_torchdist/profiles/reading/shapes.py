"""Shapes and types of tensors, as the profiler records them beside an operator."""

from __future__ import annotations

import math
from typing import Any, Final, cast

from otel_torchdist.profiles.names import dtype_of

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
