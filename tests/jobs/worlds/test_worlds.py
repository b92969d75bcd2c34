"""Jobs of known parallelism: their axes and what these are for are found from the calls alone."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from otel_torchdist.analysis.parallelism.calls import calls_of
from otel_torchdist.analysis.parallelism.graph import Graph, ParallelGroups, graph_of
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.node.job.runs.runs import Run, index_of
from otel_torchdist.sources.history.tapes import histories_of
from tests.support.launch.jobs import Jobs
from tests.support.launch.side_by_side import selected
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.worlds.finished import findings_in, world_of


def tokens_of(sender: int, receiver: int, nth: int) -> int:
    """How many of its 64 tokens a member of a pair sends to another, as in the worker."""
    first = 20 + 3 * nth + 5 * sender
    return first if receiver == 0 else 64 - first


@dataclass(frozen=True)
class World:
    """A job.

    Attributes:
        name: Its function in the worker.
        ranks: Its ranks.
        axes: Size and roles of each axis, the innermost first; without a role if its groups call nothing.
        everywhere: Roles of what all ranks do together, beyond that.
    """

    name: str
    ranks: int
    axes: tuple[tuple[int, tuple[str, ...]], ...]
    everywhere: tuple[str, ...] = ()


WORLDS = (
    World("ddp", 4, ((4, ("DP",)),)),
    World("by_hand", 4, ((4, ("DP",)),)),
    World("zero", 4, ((4, ("DP",)),)),
    World("fsdp", 4, ((4, ("FSDP",)),)),
    World("first_fsdp", 4, ((4, ("FSDP",)),)),
    World("hsdp", 4, ((2, ("FSDP",)), (2, ("HSDP replicas",)))),
    World("hsdp_tp", 8, ((2, ("TP",)), (2, ("FSDP",)), (2, ("HSDP replicas",)))),
    World("fsdp_tp", 4, ((2, ("TP",)), (2, ("FSDP",)))),
    World("ddp_sp", 4, ((2, ("TP with SP",)), (2, ("DP",)))),
    World("three_axes", 8, ((2, ("TP",)), (2, ("DP",)), (2, ("PP",)))),
    World("pipeline", 4, ((4, ("PP",)),)),
    World("interleaved", 4, ((4, ("PP",)),)),
    World("expert", 4, ((2, ("EP",)), (2, ())), ("DP",)),
    World("expert_pipeline", 4, ((2, ("DP", "EP")), (2, ("PP",)))),
    World("ulysses", 4, ((2, ("CP (Ulysses)",)), (2, ())), ("DP",)),
    World("fsdp_ulysses", 4, ((2, ("CP (Ulysses)",)), (2, ())), ("FSDP",)),
    World("ring", 8, ((4, ("CP (ring)",)), (2, ())), ("DP",)),
    World("recommender", 4, ((4, ("DP", "EP")),)),
    World("hooked", 4, ((4, ("DP",)),)),
    World("one_by_one", 4, ((4, ("FSDP",)),)),
    World("dispatched", 4, ((2, ("EP",)), (2, ())), ("DP",)),
)


EVEN: Final = 4
"""Ranks of most worlds; larger ones are left to `make test-all`."""
PARAMS: Final = [
    pytest.param(world, id=world.name, marks=[pytest.mark.thorough] if world.ranks > EVEN else []) for world in WORLDS
]
NOTHING_EQUAL: Final = ("pipeline", "interleaved")
"""Worlds without an operation whose results must be equal; the interleaved one votes by `all_reduce` in torch 2.15."""


@dataclass(frozen=True)
class Recorded:
    """What is known of a world at its end."""

    graph: Graph
    values: WorldSnapshot


@pytest.fixture(scope="module", params=["python", pytest.param("native", marks=pytest.mark.thorough)])
def worlds(request: pytest.FixtureRequest, warm_python: WarmPython) -> Iterator[dict[str, Recorded]]:
    """All worlds. Those of one size are runs of one job, which imports torch only once."""
    jobs = Jobs(warm_python, Path(__file__).parent / "workers", environ=environ_of(request.param))
    found: dict[str, Recorded] = {}
    for ranks in {world.ranks for world in selected(request, "world")} | {EVEN}:
        names = [world.name for world in WORLDS if world.ranks == ranks]
        tapes = jobs.run("worlds", ranks, *names, timeout_s=120).tapes[0].path.parent
        with contextlib.closing(index_of([tapes])) as index:
            runs = sorted(index.runs, key=lambda run: run.begun_ns)
            for name, run in zip(names, runs, strict=True):
                found[name] = Recorded(graph_in(run), world_of(tape.path for tape in run.tapes))
    yield found
    jobs.clean_up()


@pytest.fixture(scope="module")
def graphs(worlds: dict[str, Recorded]) -> dict[str, Graph]:
    """The graph of each world."""
    return {name: recorded.graph for name, recorded in worlds.items()}


def graph_in(run: Run) -> Graph:
    """The graph of a run."""
    histories, unreadable = histories_of(run)
    assert unreadable == []
    return graph_of(calls_of(histories))


def roles(groups: ParallelGroups) -> tuple[str, ...]:
    """What groups are for, in a fixed order."""
    return tuple(sorted(one.role.value for one in groups.roles))


@pytest.mark.parametrize("world", PARAMS)
def test_world(graphs: dict[str, Graph], world: World) -> None:
    """Axes and roles are those by which the world was made, and no name of a group is found to mislead."""
    graph = graphs[world.name]
    assert graph.steady and graph.unseen == ()
    assert [(len(axis.members[0]), roles(axis)) for axis in graph.axes] == list(world.axes)
    wide = [other for other in graph.groups if len(other.members[0]) == world.ranks]
    assert [roles(one) for one in wide] == ([world.everywhere] if wide else [])
    assert not any(groups.misnamed for groups in (*graph.axes, *graph.groups))


@pytest.mark.parametrize("world", PARAMS)
def test_values_are_healthy(worlds: dict[str, Recorded], world: World) -> None:
    """All inputs are finite, and all results and replicas equal that must be: there is no finding about values."""
    recorded = worlds[world.name].values
    assert findings_in(recorded) == []
    assert all(view.values.are_all_checked for view in recorded.ranks.values())
    assert any(view.values.outputs for view in recorded.ranks.values()) or world.name in NOTHING_EQUAL


def test_balance_of_experts(graphs: dict[str, Graph]) -> None:
    """Bytes of uneven exchanges are those that were sent, and the expert with most of them is the one that has most."""
    graph = graphs["dispatched"]
    axis, _ = graph.axes
    steady, ways, row = range(2, 5), 2, 32 * 4
    sent = {(one, other): sum(tokens_of(one, other, nth) for nth in steady) for one in (0, 1) for other in (0, 1)}
    # Twice in each step there and back, in two pairs.
    assert axis.sent_bytes == 2 * 2 * ways * row * (sent[0, 1] + sent[1, 0])
    most = [max(tokens_of(0, one, nth) + tokens_of(1, one, nth) for one in (0, 1)) for nth in steady]
    found = axis.imbalance
    assert found is not None
    assert (found.rank % 2, found.exchanges) == (1, 3 * 2 * ways)
    assert found.typical_ratio == pytest.approx(statistics.median(most) / 64)
    assert found.ratio == pytest.approx((sent[0, 1] + sent[1, 1]) / (3 * 64))


def test_bytes_go_where_they_were_sent(graphs: dict[str, Graph]) -> None:
    """Messages of a pipeline go from stage to stage and back, and nowhere else; all have the size of a microbatch."""
    microbatch, microbatches, steady = 2 * 32 * 4, 4, 3
    neighbors = {pair for stage in range(3) for pair in ((stage, stage + 1), (stage + 1, stage))}
    assert graphs["pipeline"].sent == dict.fromkeys(neighbors, microbatch * microbatches * steady)
