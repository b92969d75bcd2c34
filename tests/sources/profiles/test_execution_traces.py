"""Execution traces of NCCL jobs, in the forms of `execution_trace_observer.cpp` since 2023."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.profiles.reading_traces import graph_in, histories, roles

WORLD = 4
CONFIG = [
    {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [], "group_size": 4},
    {"pg_name": "1", "pg_desc": "mesh_dp", "backend_config": "cuda:nccl", "ranks": [0, 3], "group_size": 2},
]  # fmt: skip
TENSOR = [13, 14, 0, 4_096, 4, "cuda:0"]


class ExecutionTrace:
    """The trace of a rank, node by node."""

    def __init__(self, schema: str) -> None:
        """Begin with the groups."""
        self.schema = schema
        self.nodes: list[dict[str, Any]] = []
        self.node("## process_group:init ##", [json.dumps(CONFIG)], [[]], ["String"], {})

    def node(
        self, name: str, values: list[Any], shapes: list[Any], types: list[str], attributes: dict[str, Any]
    ) -> None:
        """Add a node."""
        common = {"name": name, "id": len(self.nodes) + 3}
        if self.schema.startswith("1.0"):
            self.nodes.append(
                common | {"parent": 2, "inputs": values, "input_shapes": shapes, "input_types": types, "outputs": []}
            )
            return
        attrs = [{"name": key, "type": "", "value": value} for key, value in attributes.items()]
        inputs = {"values": values, "shapes": shapes, "types": types}
        self.nodes.append(common | {"ctrl_deps": 2, "inputs": inputs, "outputs": {}, "attrs": attrs})

    def call(self, collective: str, group: str, place: int, start: int, stride: int, size: int) -> None:
        """Add a call with one flat tensor; a wait and a barrier have none."""
        has_data = collective not in ("wait", "barrier")
        sequence = [len(self.nodes), False] if self.schema != "1.0.1" else 17
        name: Any = [group, "mesh"] if self.schema != "1.0.1" else 94_000_000
        values = [sequence, name, place, collective, [], []]
        values += [start, stride, size] if self.schema != "1.0.1" else [size]
        shapes: list[Any] = [[]] * len(values)
        types = ["Int"] * len(values)
        if has_data:
            values, shapes = [[TENSOR], *values], [[[4_096]], *shapes]
            types = ["GenericList[Tensor(c10::BFloat16)]", *types]
        attributes = {
            "collective_name": collective, "dtype": "BFloat16", "in_msg_nelems": 4_096 * has_data,
            "pg_name": group, "pg_size": size, "global_rank_start": start, "global_rank_stride": stride,
        }  # fmt: skip
        self.node("record_param_comms", values, shapes, types, attributes)

    def step(self, number: int) -> None:
        """Add the mark of a step."""
        self.node(f"ProfilerStep#{number}", [], [], [], {})

    def write(self, path: Path) -> None:
        """Write it."""
        path.write_text(json.dumps({"schema": self.schema, "pid": 7, "time": "", "start_ts": 1, "nodes": self.nodes}))


@pytest.mark.parametrize("schema", ["1.0.3-chakra.0.0.4", "1.1.1-chakra.0.0.4"])
@pytest.mark.parametrize("name", ["et_rank_3.json", "trace.json"])
def test_calls(tmp_path: Path, schema: str, name: str) -> None:
    """Calls have group, size, shape and step; waits are none. The rank is in the name, or follows from a call."""
    trace = ExecutionTrace(schema)
    for step in (2, 3):
        trace.step(step)
        trace.call("allreduce", "1", 1, 0, 3, 2)
        trace.call("wait", "1", 1, -1, -1, 1)
        trace.call("barrier", "0", 3, 0, 1, 4)
    trace.write(tmp_path / name)
    [history] = histories(tmp_path)
    assert (history.rank, history.world_size) == (3, WORLD)
    assert [(view.record.step, view.name, view.record.message_bytes) for view in history.operations] == [
        (2, "all_reduce", 8_192), (2, "barrier", 0), (3, "all_reduce", 8_192), (3, "barrier", 0),
    ]  # fmt: skip
    [reduce, barrier] = history.operations[:2]
    assert reduce.group is not None and (reduce.group.name.ranks, reduce.group.label) == ((0, 3), "mesh_dp")
    assert barrier.group is not None and barrier.group.name.ranks == (0, 1, 2, 3)
    assert reduce.signature is not None and reduce.signature.shapes == ((4_096,),)


def test_oldest_form(tmp_path: Path) -> None:
    """Before groups had names, a call says only how many ranks take part: two groups of two would be one too many."""
    trace = ExecutionTrace("1.0.1")
    trace.call("allreduce", "", 0, 0, 1, 2)
    trace.call("allreduce", "", 0, 0, 1, 4)
    trace.write(tmp_path / "et_rank_0.json")
    [history] = histories(tmp_path)
    assert [view.group and view.group.label for view in history.operations] == ["mesh_dp", "default_pg"]


def test_numbers_for_groups(tmp_path: Path) -> None:
    """Until 2023 a number stood for a group, which the node of the groups explains."""
    trace = ExecutionTrace("1.0.1")
    trace.nodes[0]["inputs"] = [json.dumps([{**CONFIG[0], "uid": 5}, {**CONFIG[1], "backend_id": 94_000_000}])]
    trace.call("allreduce", "", 1, 0, 1, 2)
    trace.write(tmp_path / "trace.json")
    [history] = histories(tmp_path)
    assert history.rank == 3
    assert [view.group and view.group.name.ranks for view in history.operations] == [(0, 3)]


def test_graph(tmp_path: Path) -> None:
    """Flat tensors that are reduced are gradients; messages have their peers."""
    for rank in (0, 3):
        trace = ExecutionTrace("1.1.1-chakra.0.0.4")
        trace.step(5)
        trace.call("allreduce", "1", rank // 3, 0, 3, 2)
        trace.call("send" if rank else "recv", "1", 1 - rank // 3, 0, 3, 2)
        trace.write(tmp_path / f"et_{rank}.json")
    graph = graph_in(tmp_path)
    [pair] = [other for other in (*graph.axes, *graph.groups) if other.members[0] == (0, 3)]
    assert roles(pair) == ("DP", "PP")
    assert graph.sent[3, 0] == 2 * 8_192
    assert graph.unseen == (1, 2)
