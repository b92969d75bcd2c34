"""Pictures: the calls and steps that they draw."""

from __future__ import annotations

import pytest

from otel_torchdist.runs import RunError, open_run
from tests.runs.conftest import STEPS, RecordedJobs
from tests.runs.test_opening import TRACE

pytest.importorskip("altair")
pytestmark = pytest.mark.process


def test_timeline(jobs: RecordedJobs) -> None:
    """A timeline has the calls of the chosen ranks and steps, with their durations, on one axis of time."""
    chart = jobs.before.plot_timeline(ranks=[1], steps=(10, 12)).to_dict()
    bars = chart["data"]["values"]
    assert [(bar["rank"], bar["operation"], bar["step"]) for bar in bars] == [
        (1, "all_reduce", step) for step in (10, 10, 11, 11, 12, 12)
    ]
    assert all(0 <= bar["start_ms"] < bar["end_ms"] for bar in bars)
    assert {bar["group"] for bar in bars} == {"replicas"} and {bar["state"] for bar in bars} == {"ended"}
    durations = {
        (row["sequence"], row["rank"]): row["duration_ns"]
        for row in jobs.before.calls.to_arrow().to_pylist()
        if row["operation"] == "all_reduce"
    }
    assert [bar["ms"] for bar in bars] == [durations[bar["sequence"], 1] / 1e6 for bar in bars]


def test_bound(jobs: RecordedJobs) -> None:
    """The newest calls are drawn, at most as many as asked for."""
    bars = jobs.before.plot_timeline(max_calls=5).to_dict()["data"]["values"]
    assert len(bars) == 5 and max(bar["step"] for bar in bars) >= STEPS - 1
    with pytest.raises(RunError, match="no matching call to draw"):
        jobs.before.plot_timeline(steps=(5_000, 5_001))


def test_steps(jobs: RecordedJobs) -> None:
    """The picture of steps has each step with a duration once, the median between the shortest and the longest."""
    values = jobs.before.plot_steps().to_dict()["data"]["values"]
    assert [value["step"] for value in values] == [*range(1, STEPS)]
    assert all(value["shortest"] <= value["median"] <= value["longest"] for value in values)


def test_a_trace() -> None:
    """Calls of a real profiler trace are drawn, too."""
    bars = open_run(TRACE).plot_timeline().to_dict()["data"]["values"]
    assert {bar["rank"] for bar in bars} == {0} and len(bars) > 5
