"""Traces of jobs of known parallelism: axes and what they are for are found, in each format as far as it shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.parallelism.calls import calls_of
from otel_torchdist.parallelism.graph import Graph, Groups, graph_of
from otel_torchdist.profiles.groups import JobGroups
from otel_torchdist.profiles.history import histories_of
from otel_torchdist.profiles.reading.reader import read_profiles
from tests.profiles.made import Format
from tests.profiles.worlds import FIRST, LATER, World, traces_of

WORLDS = (*FIRST, *LATER)


def graph_in(folder: Path) -> Graph:
    """The graph that the traces in a folder show."""
    found = read_profiles([folder])
    assert found.notes == ()
    return graph_of(calls_of(histories_of(found.profiles, JobGroups(found.profiles))))


def roles(groups: Groups) -> tuple[str, ...]:
    """What groups are for, in a fixed order."""
    return tuple(sorted(one.role.value for one in groups.roles))


def assert_shown(graph: Graph, world: World) -> None:
    """Check axes, their roles, and what all ranks do together."""
    expected = sorted(zip(world.sizes, world.axes, strict=True))
    assert sorted((len(axis.members[0]), roles(axis)) for axis in graph.axes) == expected
    wide = [other for other in graph.others if len(other.members[0]) == graph.world_size]
    assert [roles(one) for one in wide] == ([world.wide] if wide else [])
    assert not any(groups.misnamed for groups in (*graph.axes, *graph.others))


@pytest.mark.parametrize("has_shapes", [False, True], ids=["without shapes", "with shapes"])
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
