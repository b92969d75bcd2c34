"""The trace of a real job on NCCL, against what its own events say."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.model.kinds import How, Phase
from tests.sources.profiles.reading_traces import graph_in, histories, roles

TRACE = Path(__file__).parent / "data" / "nccl_data.json.gz"


def test_calls() -> None:
    """A call and its kernel are one; waits are none; what is beside the call and when the kernel ran is kept."""
    [history] = histories(TRACE)
    document = json.loads(gzip.decompress(TRACE.read_bytes()))
    base_ns, events = document["baseTimeNanoseconds"], document["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel" and "nccl" in event["name"]]
    ran = {(base_ns + round(one["ts"] * 1000), round(one["dur"] * 1000)) for one in kernels}
    records = [view.record for view in history.operations]
    assert len(records) == len(kernels) == 21
    took = [(record.started_ns or 0, record.completed_ns or 0) for record in records]
    assert {(begun_ns, ended_ns - begun_ns) for begun_ns, ended_ns in took} == ran
    assert {record.how for record in records} == {How.EVENT}
    assert Counter(view.name for view in history.operations) == {"all_reduce": 15, "broadcast": 6}
    assert Counter(record.step for record in records) == {4: 7, 5: 7, 6: 7}
    sizes = {2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040}
    assert {view.record.message_bytes for view in history.operations if view.name == "all_reduce"} == {
        4 * size for size in sizes
    }


def test_backward() -> None:
    """DDP's reducer runs in backward, its buffers are synchronized before forward."""
    [history] = histories(TRACE)
    phases = Counter((view.name, view.record.phase) for view in history.operations)
    assert phases == {("all_reduce", Phase.BACKWARD): 15, ("broadcast", Phase.OUTSIDE_BACKWARD): 6}


def test_graph() -> None:
    """One of two ranks shows the axis, its purpose, and that the other has no trace."""
    graph = graph_in(TRACE)
    assert [(axis.members, axis.names, roles(axis)) for axis in graph.axes] == [(((0, 1),), ("default_pg",), ("DP",))]
    assert (graph.world_size, graph.unseen, graph.steady) == (2, (1,), True)


def test_statistics() -> None:
    """Durations are those of the kernels; positions are not recorded, so nothing is compared."""
    found = statistics_of(histories(TRACE))
    assert sum(row.timed for row in found.rows) == 21
    assert (found.groups, found.differences) == ((), ())
