"""Traces as `torch.profiler` writes them for NCCL, made call by call, in the formats of different years.

Sources: `saveNcclMeta` in torch/csrc/profiler/util.cpp and `ProcessGroupNCCL.cpp` for what is beside a call,
`output_json.cpp` of Kineto for what is beside its kernel, and the trace in `data` for how events lie together.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
MAX_LISTED = 30
_KERNELS = {
    "allreduce": "AllReduce_Sum_f32_RING_LL",
    "_allgather_base": "AllGather_RING_LL",
    "_reduce_scatter_base": "ReduceScatter_Sum_f32_RING_LL",
    "broadcast": "Broadcast_RING_LL",
}


class Format(Enum):
    """What is recorded beside a call."""

    COUNTS = "2023"
    """Sizes and the number of members, no group."""
    GROUPS = "2024"
    """Also the group, and its members if these are evenly spaced."""
    POSITIONS = "2026"
    """Also peers, and the position of the call in its group."""


@dataclass(frozen=True)
class MadeGroup:
    """A process group."""

    name: str
    description: str
    ranks: tuple[int, ...]


def cut(ranks: Sequence[int], form: Format) -> str:
    """A list of ranks as text; one of more than 30 is cut."""
    if len(ranks) <= MAX_LISTED:
        return str(list(ranks))
    if form is Format.POSITIONS:
        return f"[{', '.join(map(str, ranks[: MAX_LISTED - 1]))}, ..., {ranks[-1]}]"
    return f"[{', '.join(map(str, ranks[:MAX_LISTED]))}, ...]"


@dataclass
class MadeTrace:
    """The trace of one rank; each call takes 100 µs, and its kernel begins 50 µs later.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job.
        groups: The groups of this rank.
        form: What is recorded.
        has_shapes: Whether the profiler recorded shapes.
        has_config: Whether the groups stand at the head of the trace.
    """

    rank: int
    world_size: int
    groups: Mapping[str, MadeGroup]
    form: Format = Format.GROUPS
    has_shapes: bool = False
    has_config: bool = True
    events: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    now_us: float = 1_000.0
    in_backward: bool = False

    def __post_init__(self) -> None:
        self.pid = 10_000 + self.rank
        self._ids = itertools.count(1)
        self._positions: dict[tuple[str, bool], int] = {}

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A step of the profiler's schedule."""
        begun_us = self.now_us
        self.operator("aten::linear")
        yield
        self.now_us += 500.0
        self._span("user_annotation", f"ProfilerStep#{number}", begun_us, self.now_us, self.pid, {})
        self._span("gpu_user_annotation", f"ProfilerStep#{number}", begun_us, self.now_us, 7, {})

    @contextmanager
    def backward(self) -> Iterator[None]:
        """A backward pass, on the thread that autograd has for the device."""
        begun_us, self.in_backward = self.now_us, True
        yield
        self.in_backward = False
        name = "autograd::engine::evaluate_function: AddmmBackward0"
        self._span("cpu_op", name, begun_us, self.now_us, self.pid + 1_000_000, {})

    def operator(self, name: str) -> None:
        """An operator that is no communication."""
        self._span("cpu_op", name, self.now_us, self.now_us + 10, self._thread, {"External id": next(self._ids)})
        self.now_us += 20

    def call(
        self,
        collective: str,
        group: str,
        elements: int,
        received: int | None = None,
        *,
        dtype: str = "Float",
        shape: Sequence[int] | None = None,
        peer: int | None = None,
        sent_parts: Sequence[int] = (),
        received_parts: Sequence[int] = (),
        kernel: str | None = None,
    ) -> dict[str, Any]:
        """A call and its kernel; returns what is recorded beside the call.

        Args:
            collective: As `ProcessGroupNCCL` calls it.
            group: Its name.
            elements: Elements that go in.
            received: Elements that come out; as many if None.
            dtype: Type of the elements.
            shape: Shape of the tensor, if shapes are recorded.
            peer: Rank in the group of the peer or root; its own if None.
            sent_parts: Rows for each member.
            received_parts: Rows from each member.
            kernel: Name of its kernel; '' for none, as in a block of coalesced calls.
        """
        made, external = self.groups[group], next(self._ids)
        received = elements if received is None else received
        short = {
            "Collective name": collective,
            "dtype": dtype,
            "In msg nelems": elements,
            "Out msg nelems": received,
            "Group size": len(made.ranks),
            "In split size": cut(sent_parts, self.form),
            "Out split size": cut(received_parts, self.form),
        }
        arguments: dict[str, Any] = {"External id": external, "Record function id": external, **short}
        if self.form is not Format.COUNTS:
            short |= self._of_group(made)
            arguments |= short | self._spacing(made)
        if self.form is Format.POSITIONS:
            arguments |= self._position(collective, made, peer)
        if self.has_shapes:
            arguments["Input Dims"] = [[list(shape or (elements,))], [[], []], [[], []], [], [], [], [], [], []]
        self._span("cpu_op", "record_param_comms", self.now_us, self.now_us + 80, self._thread, arguments)
        self._span("user_annotation", f"nccl:{collective}", self.now_us + 10, self.now_us + 60, self._thread, {})
        name = kernel if kernel is not None else f"ncclDevKernel_{_KERNELS.get(collective, 'SendRecv')}"
        if name:
            beside = {"External id": external, "stream": 20, "correlation": external, **short}
            self._span(
                "kernel", f"{name}(ncclDevKernelArgsStorage<4096ul>)", self.now_us + 50, self.now_us + 95, 20, beside
            )
        self.now_us += 100
        return arguments

    def wait(self, group: str) -> None:
        """A wait for a call, which is recorded as if it were one of a group of one rank."""
        arguments = {"External id": next(self._ids), "Collective name": "wait", "dtype": "Byte", "In msg nelems": 0}
        arguments |= {"Out msg nelems": 0, "Group size": 1, "In split size": "[]", "Out split size": "[]"}
        if self.form is not Format.COUNTS:
            arguments |= {"Process Group Name": group, "Process Group Ranks": "[]"}
        self._span("cpu_op", "record_param_comms", self.now_us, self.now_us + 5, self.pid, arguments)
        self.now_us += 10

    def document(self) -> dict[str, Any]:
        """The trace."""
        distributed: dict[str, Any] = {"backend": "nccl", "rank": self.rank, "world_size": self.world_size}
        if self.has_config and self.form is not Format.COUNTS:
            distributed["pg_count"] = len(self.groups)
            distributed["pg_config"] = [
                {
                    "pg_name": group.name,
                    "pg_desc": group.description,
                    "backend_config": "cuda:nccl",
                    "pg_size": len(group.ranks),
                    "ranks": list(group.ranks),
                }
                for group in self.groups.values()
            ]
        head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], "distributedInfo": distributed}
        if self.form is Format.POSITIONS:
            head["host_name"] = f"node{self.rank // 8}"
        return {**head, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS, "traceEvents": self.events}

    def write(self, folder: Path, name: str = "") -> Path:
        """Write it, compressed, as the handler for TensorBoard names it; returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / (name or f"node{self.rank // 8}_{self.pid}.{BASE_NS}.pt.trace.json.gz")
        content = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
        return path

    @property
    def _thread(self) -> int:
        return self.pid + 1_000_000 if self.in_backward else self.pid

    def _of_group(self, group: MadeGroup) -> dict[str, Any]:
        listed = group.ranks if _stride(group.ranks) > 0 else ()
        return {
            "Process Group Name": group.name,
            "Process Group Description": group.description,
            "Process Group Ranks": cut(listed, self.form),
        }

    def _spacing(self, group: MadeGroup) -> dict[str, Any]:
        stride = _stride(group.ranks)
        return {"Global rank start": group.ranks[0], **({"Global rank stride": stride} if stride > 0 else {})}

    def _position(self, collective: str, group: MadeGroup, peer: int | None) -> dict[str, Any]:
        is_message = collective in ("send", "recv")
        key = (group.name, is_message)
        self._positions[key] = self._positions.get(key, 0) + 1
        own = group.ranks.index(self.rank)
        found: dict[str, Any] = {"Rank": own if peer is None else peer, "Seq": self._positions[key]}
        if is_message and peer is not None and _stride(group.ranks) > 0:
            found["Dst Rank" if collective == "send" else "Src Rank"] = group.ranks[peer]
        return found | {"Is asynchronized op": True, "Comms Id": 17}

    def _span(
        self, category: str, name: str, begun_us: float, ended_us: float, thread: int, arguments: Mapping[str, Any]
    ) -> None:
        pid = 0 if category in ("kernel", "gpu_user_annotation") else self.pid
        times = {"ts": begun_us, "dur": ended_us - begun_us}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": thread, **times, "args": arguments}
        )


def _stride(ranks: Sequence[int]) -> int:
    """How far apart ranks are; -1 if that is not the same everywhere, 0 for one rank."""
    strides = {after - before for before, after in itertools.pairwise(ranks)}
    return strides.pop() if len(strides) == 1 else -1 if strides else 0
