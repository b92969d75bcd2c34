"""Axes follow from the members of groups alone, independent of the ranks' numbers and of other groups."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_torchdist.analysis.parallelism.axes import Grid, grid_of
from otel_torchdist.analysis.parallelism.families import families_of
from tests.analysis.parallelism.worlds import MeshWorld


def grid(world: MeshWorld) -> Grid:
    """Return the grid of a world."""
    return grid_of(families_of(world.groups, world.world_size), world.world_size)


def megatron(sizes: tuple[int, ...] = (2, 2, 4), seed: int | None = None) -> MeshWorld:
    """Return a mesh of TP, DP and PP, with the product groups that Megatron creates."""
    world = MeshWorld(sizes, seed).add("tp", 0).add("dp", 1).add("pp", 2)
    return world.add("model", 0, 2).add("tp-dp", 0, 1).add("default_pg", 0, 1, 2)


def test_axes_by_stride() -> None:
    """The innermost axis comes first, and coordinates match the mesh."""
    found = grid(megatron())
    assert [(axis.size, axis.stride) for axis in found.axes] == [(2, 1), (2, 2), (4, 4)]
    assert found.copies == 1
    assert [row[:3] for row in found.coordinates] == [
        (tp, dp, pp) for pp, dp, tp in itertools.product(range(4), range(2), range(2))
    ]


def test_products_and_parts() -> None:
    """A group is along an axis, or a product of axes; the ends of a pipeline are a part of an axis."""
    world = megatron()
    found = grid(world)
    assert [found.span(world.along(*axes)[0]) for axes in ((0,), (0, 2), (0, 1), (0, 1, 2))] == [
        (0,), (0, 2), (0, 1), (0, 1, 2),
    ]  # fmt: skip
    assert found.span((0, 12)) is None


def test_one_axis_and_copies() -> None:
    """If only a group of all ranks connects the grids, the grids are copies."""
    world = MeshWorld((4, 2)).add("tp", 0).add("default_pg", 0, 1)
    found = grid(world)
    assert ([axis.size for axis in found.axes], found.copies) == ([4], 2)
    assert found.span(tuple(range(8))) == (0, 1)
    only = grid(MeshWorld((8,)).add("default_pg", 0))
    assert ([axis.size for axis in only.axes], only.copies) == ([8], 1)


def test_no_groups() -> None:
    """Ranks without groups are copies of an empty grid."""
    found = grid(MeshWorld((3,)))
    assert (found.axes, found.copies) == ((), 3)


@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(0, 1 << 20)),
    st.booleans(),
    st.data(),
)
def test_any_mesh(sizes: list[int], seed: int | None, has_names: bool, data: st.DataObject) -> None:
    """Meshes with axes of any number and size, ranks in any order, with or without names and product groups."""
    world = MeshWorld(sizes, seed)
    axes = range(len(sizes))
    for axis in axes:
        world.add(f"axis {axis}" if has_names else "", axis)
    products = [chosen for size in range(2, len(sizes) + 1) for chosen in itertools.combinations(axes, size)]
    for product in data.draw(st.lists(st.sampled_from(products), unique=True, max_size=3)) if products else []:
        world.add(f"product {product}" if has_names else "", *product)
    found = grid(world)
    assert sorted(axis.groups for axis in found.axes) == sorted(tuple(sorted(world.along(axis))) for axis in axes)
    assert found.copies == 1
    assert len({*found.coordinates}) == world.world_size


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [None, 7])
def test_thousands_of_ranks(seed: int | None) -> None:
    """A large world takes seconds, not minutes."""
    found = grid(megatron((8, 16, 32), seed))
    assert sorted(axis.size for axis in found.axes) == [8, 16, 32]


def test_groups_of_ranks_without_records() -> None:
    """Groups are inferred if their members follow from the others and none of their ranks has records."""
    world = megatron()
    lost = {(0, 1), (0, 2), (1, 3)}
    groups = {members: texts for members, texts in world.groups.items() if members not in lost}
    found = families_of(groups, 16, unseen=(0, 1))
    inferred = [(family.size, family.stride) for family in found.whole if family.is_inferred]
    assert inferred == [(2, 1)]  # ranks 2 and 3 have records, and so would their groups with 0 and 1
    assert not any(family.is_inferred for family in families_of(groups, 16).whole)
    assert families_of(groups, 16).rest[0] == (2, 3)
