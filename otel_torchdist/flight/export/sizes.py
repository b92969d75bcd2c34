"""The sizes on both sides of an operation. A tape describes one side; `torchfrtrace` compares each with the other."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from otel_torchdist.model.collectives import COLLECTIVES, EXCHANGES, Waiting

Shape = tuple[int, ...]

NOTHING: Final[Shape] = (0,)
"""What only the root has, on other ranks."""


class Sides(NamedTuple):
    """Shapes of the tensors on both sides of an operation."""

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


def sides_of(operation: str, shapes: tuple[Shape, ...], members: int, is_root: bool) -> Sides:
    """Compute the side that the tape does not describe.

    What a rank receives in an `all_to_all` is taken to be as large as what it sends; see `exchanged` for uneven ones.

    Args:
        operation: Our name of the operation.
        shapes: Those on the tape, a shape for each tensor.
        members: How many ranks the group has.
        is_root: Whether this rank is the root, if there is one.
    """
    row = COLLECTIVES.get(operation)
    if row is None:
        return Sides(shapes, shapes)
    if row.describes_share:  # the output is on the tape
        has_input = is_root or not row.family.is_rooted
        return Sides(tuple((members, *shape) for shape in shapes) if has_input else (NOTHING,), shapes)
    if row.family.waiting is Waiting.ROOT and not row.family.reduces and not is_root:
        return Sides(shapes, (NOTHING,))
    if row.family.is_in_place or row.name in EXCHANGES:
        return Sides(shapes, shapes)
    if row.family.has_input_parts:
        return Sides(shapes, tuple(_share(shape, members) for shape in shapes))
    if row.is_flat or row.is_coalesced:
        return Sides(shapes, tuple(_concatenated(shape, members) for shape in shapes))
    return Sides(shapes, tuple((members, *shape) for shape in shapes))


def exchanged(shape: Shape, received: int) -> Sides:
    """The sizes of an uneven `all_to_all` of one tensor.

    Args:
        shape: What a rank sends; its rows are split among the members.
        received: How many elements it receives.
    """
    row = math.prod(shape[1:])
    is_whole = bool(shape) and row > 0 and received % row == 0
    return Sides((shape,), ((received // row, *shape[1:]) if is_whole else (received,),))


def _concatenated(shape: Shape, members: int) -> Shape:
    return (shape[0] * members, *shape[1:]) if shape else (members,)


def _share(shape: Shape, members: int) -> Shape:
    """A rank's share of a tensor; flat if that is not a part of its first dimension."""
    if shape and shape[0] % members == 0:
        return (shape[0] // members, *shape[1:])
    return (math.prod(shape) // members,)
