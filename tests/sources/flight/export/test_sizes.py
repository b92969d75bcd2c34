"""The sizes on both sides, as PyTorch's own operations require them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.sources.flight.export.dumps import NOTHING, Shape, sides_of, uneven_sides

GATHERING = ("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "all_gather_into_tensor_coalesced")
SCATTERING = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced")
SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 8))
def test_every_gathered_tensor_has_all_parts(shapes: tuple[Shape, ...], members: int) -> None:
    """What is gathered has as many elements as all members have given."""
    for operation in GATHERING:
        sides = sides_of(operation, shapes, members, is_root=False)
        assert sides.inputs == shapes
        assert [math.prod(one) for one in sides.outputs] == [members * math.prod(one) for one in shapes]


@given(SHAPES, st.integers(1, 8))
def test_every_scattered_tensor_has_all_parts(shapes: tuple[Shape, ...], members: int) -> None:
    """What is scattered has as many elements as all members receive, whichever side the tape describes."""
    for operation in SCATTERING:
        described = shapes if operation == "reduce_scatter" else tuple((members, *shape) for shape in shapes)
        sides = sides_of(operation, described, members, is_root=False)
        assert described in sides
        assert [math.prod(one) for one in sides.inputs] == [members * math.prod(one) for one in sides.outputs]


def test_share_of_a_tensor_that_has_no_equal_parts() -> None:
    """A call that torch refuses anyway is written all the same."""
    assert sides_of("reduce_scatter_tensor", ((7,),), 2, is_root=False).outputs == ((3,),)
    assert sides_of("reduce_scatter_tensor", ((3, 4),), 2, is_root=False).outputs == ((6,),)
    assert sides_of("reduce_scatter_tensor", ((),), 2, is_root=False).outputs == ((0,),)


@pytest.mark.parametrize("operation", ["gather", "gather_into_tensor", "scatter"])
def test_only_the_root_has_the_parts(operation: str) -> None:
    """Other ranks have nothing on that side."""
    at_root, elsewhere = (sides_of(operation, ((2, 3),), 4, is_root=is_root) for is_root in (True, False))
    side = 0 if operation == "scatter" else 1
    assert (math.prod(at_root[side][0]), elsewhere[side]) == (24, (NOTHING,))
    assert at_root[1 - side] == elsewhere[1 - side] == ((2, 3),)


@given(SHAPES, st.integers(0, 50))
def test_every_exchanged_element_arrives(shapes: tuple[Shape, ...], received: int) -> None:
    """The output of an uneven exchange has as many elements as its rank received, in whole rows if possible."""
    shape = shapes[0]
    inputs, (output,) = uneven_sides(shape, received)
    row = math.prod(shape[1:])
    assert (inputs, math.prod(output)) == ((shape,), received)
    assert output[1:] == (shape[1:] if shape and row and received % row == 0 else ())


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "reduce", "all_to_all_single", "send", "recv"])
def test_both_sides_are_alike(operation: str) -> None:
    """Other operations have as much on one side as on the other."""
    assert sides_of(operation, ((2, 3), (4,)), 4, is_root=False) == (((2, 3), (4,)), ((2, 3), (4,)))
