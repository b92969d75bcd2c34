"""Traces of jobs of known parallelism: axes and what they are for are found, in each format as far as it shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.analysis.parallelism.graph import Graph
from tests.sources.profiles.made import Format
from tests.sources.profiles.reading_traces import graph_in, roles
from tests.sources.profiles.worlds import FIRST, LATER, World, traces_of

WORLDS = (*FIRST, *LATER)


def assert_shown(graph: Graph, world: World) -> None:
    """Check axes, their roles, and what all ranks do together."""
    expected = sorted(zip(world.sizes, world.axes, strict=True))
    assert sorted((len(axis.members[0]), roles(axis)) for axis in graph.axes) == expected
    wide = [other for other in graph.groups if len(other.members[0]) == graph.world_size]
    assert [roles(one) for one in wide] == ([world.wide] if wide else [])
    assert not any(groups.misnamed for groups in (*graph.axes, *graph.groups))


@pytest.mark.parametrize(
    "has_shapes",
    [pytest.param(False, id="without shapes"), pytest.param(True, id="with shapes", marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("form", [Format.GROUPS, Format.POSITIONS], ids=lambda form: form.value)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_world(tmp_path: Path, world: World, form: Format, has_shapes: bool) -> None:
    """Axes and roles are those by which the world was made, with ranks in order."""
    for trace in traces_of(world, form, has_shapes=has_shapes):
        trace.write(tmp_path)
    assert_shown(graph_in(tmp_path), world)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_shuffled(tmp_path: Path, world: World) -> None:
    """The same where ranks are shuffled, so that calls have neither ranks nor stride beside them."""
    for trace in traces_of(world, Format.GROUPS, seed=5):
        trace.write(tmp_path)
    assert_shown(graph_in(tmp_path), world)


def test_one_rank_of_many(tmp_path: Path) -> None:
    """One trace shows the axes of a world of 16 ranks in order, and of which ranks there is none."""
    three = next(world for world in WORLDS if world.name == "three")
    for trace in traces_of(three, Format.GROUPS, only=[5]):
        trace.write(tmp_path)
    graph = graph_in(tmp_path)
    assert [(len(axis.members[0]), roles(axis), axis.inferred) for axis in graph.axes] == [
        (2, ("TP",), True),
        (2, ("DP",), True),
        (4, ("PP or ring CP",), True),
    ]
    assert graph.unseen == (*range(5), *range(6, 16))


def test_a_few_shuffled_ranks(tmp_path: Path) -> None:
    """Where groups are missing that would show the axes, those of one name are described together."""
    three = next(world for world in WORLDS if world.name == "three")
    for trace in traces_of(three, Format.GROUPS, seed=3, only=[0, 1, 2]):
        trace.write(tmp_path)
    graph = graph_in(tmp_path)
    assert {(len(other.members[0]), roles(other)) for other in graph.groups} == {
        (2, ("TP",)), (2, ("DP",)), (4, ("PP or ring CP",)),
    }  # fmt: skip
    assert not any(groups.misnamed for groups in (*graph.axes, *graph.groups))


def test_counts_alone(tmp_path: Path) -> None:
    """Traces of 2023 name no groups: a call with as many ranks as there are is of all ranks, others are of none."""
    for name in ("ddp", "tp_dp"):
        for trace in traces_of(next(world for world in WORLDS if world.name == name), Format.COUNTS):
            trace.write(tmp_path / name)
    assert [roles(axis) for axis in graph_in(tmp_path / "ddp").axes] == [("DP",)]
    assert [(len(axis.members[0]), roles(axis)) for axis in graph_in(tmp_path / "tp_dp").axes] == [(8, ())]
