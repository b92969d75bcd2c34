"""Traces that `torch.profiler` writes of jobs on gloo: what they show, and what they do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import How, Phase
from otel_torchdist.sources.profiles.groups import ProfiledGroups
from otel_torchdist.sources.profiles.history import gaps_in
from tests.sources.profiles.reading_traces import graph_in, histories, read, roles
from tests.support.launch.jobs import Jobs
from tests.support.launch.warm_python import WarmPython

RANKS = 4
NAMES = ("ddp", "fsdp", "pipeline", "tensors")


@pytest.fixture(scope="module")
def traces(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a folder of traces for each job."""
    folder, jobs = tmp_path_factory.mktemp("traces"), Jobs(warm_python, Path(__file__).parent / "workers")
    jobs.run("profiled", RANKS, str(folder), *NAMES, timeout_s=120)
    yield folder
    jobs.clean_up()


@pytest.mark.parametrize(("job", "role"), [("ddp", "DP"), ("fsdp", "FSDP"), ("pipeline", "PP")])
@pytest.mark.parametrize("kind", ["kineto", "execution"])
def test_jobs_of_one_group(traces: Path, job: str, role: str, kind: str) -> None:
    """Where ranks have one group, every call belongs to it: its purpose is found from either kind of trace."""
    graph = graph_in(traces / job / kind)
    assert [(axis.members, roles(axis)) for axis in graph.axes] == [(((0, 1, 2, 3),), (role,))]
    assert graph.steady
    assert sum(graph.sent.values()) > 0


def test_several_groups(traces: Path) -> None:
    """The axes follow from the groups; to which of them a call belongs is not in the trace, and that is reported."""
    graph = graph_in(traces / "tensors" / "kineto")
    assert [(axis.members, roles(axis)) for axis in graph.axes] == [
        (((0, 1), (2, 3)), ()),
        (((0, 2), (1, 3)), ()),
    ]
    profiles = read(traces / "tensors" / "kineto").profiles
    [line] = gaps_in(profiles, ProfiledGroups(profiles))
    assert "calls have no group in the traces" in line


def test_functional_collectives(traces: Path) -> None:
    """An execution trace names the groups of functional collectives, which tensor parallelism uses."""
    graph = graph_in(traces / "tensors" / "execution")
    assert [(axis.members, roles(axis)) for axis in graph.axes] == [
        (((0, 1), (2, 3)), ("TP",)),
        (((0, 2), (1, 3)), ()),
    ]


def test_calls(traces: Path) -> None:
    """Each call is there once, with sizes, times, step, and whether a backward pass made it."""
    for history in histories(traces / "fsdp" / "kineto"):
        shown = [
            (view.record.step, view.name, view.record.message_bytes, view.record.phase) for view in history.operations
        ]
        parameters = 2 * 32 * 64 + 64 + 32
        step = [
            ("all_gather_into_tensor", parameters, Phase.OUTSIDE_BACKWARD),
            ("reduce_scatter_tensor", 4 * parameters, Phase.BACKWARD),
            ("all_reduce", 4, Phase.OUTSIDE_BACKWARD),
        ]
        assert shown == [(number, *call) for number in (1, 2, 3) for call in step]
        records = [view.record for view in history.operations]
        assert all(record.how is How.EVENT and record.started_ns for record in records)
        assert all(record.entered_ns < (record.completed_ns or 0) for record in records)
        assert [mark.step for mark in history.steps] == [1, 2, 3]
        assert history.host and history.clock


def test_messages(traces: Path) -> None:
    """Sends and receives have their peers, and both sides agree on what was sent."""
    graph = graph_in(traces / "pipeline" / "kineto")
    neighbors = {pair for stage in range(3) for pair in ((stage, stage + 1), (stage + 1, stage))}
    messages, steps, size = 2, 2, 4 * 32 * 4
    assert graph.sent == dict.fromkeys(neighbors, messages * steps * size)
