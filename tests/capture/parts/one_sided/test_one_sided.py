"""Symmetric memory and windows are recorded as enqueued, counted separately, and work as before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import ProcessGroup

from otel_torchdist.capture.core.torch_api import Patches, has_foreign_kernel
from otel_torchdist.capture.parts.one_sided import OneSided, Windows, symmetric_schemas
from otel_torchdist.model.names import BESIDE
from tests.support.devices.device_rank import DeviceRank, device_rank
from tests.support.launch.jobs import Job, Jobs
from tests.support.tapes.recorded import Recorded, read_tape


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """Two ranks, one of which uses symmetric memory."""
    return jobs.run("one_sided", 2)


def test_which_operations() -> None:
    """The schemas give all of torch's operations with a group and a tensor, without local ones."""
    found = {schema.name: schema for schema in symmetric_schemas()}
    assert {"one_shot_all_reduce", "two_shot_all_reduce", "multimem_all_reduce"} <= {*found}
    broadcast = torch.ops.symm_mem.nvshmem_broadcast.default
    assert has_foreign_kernel(broadcast, "CUDA") is ("nvshmem_broadcast" in found)  # it has none in torch 2.8
    assert not {"get_remote_tensors", "rendezvous", "barrier", "nvshmem_put"} & {*found}
    rooted = {name for name, one in found.items() if "int root" in str(one.overload._schema)}
    assert {name for name, one in found.items() if one.peer >= 0} == rooted


def test_enqueued(job: Job) -> None:
    """One-sided operations have their group, tensors and line, and an end that is marked as unknown."""
    first, second, refused = beside(job, 0)
    assert [first.name, second.name, refused.name] == ["one_shot_all_reduce"] * 2 + ["two_shot_all_reduce"]
    assert [one.how for one in (first, second, refused)] == ["UNTRACKED", "UNTRACKED", "FAILED"]
    assert (first.group.ranks, first.group.aligned, first.group.description) == ((0, 1), False, "pair")
    assert (first.signature.shapes, first.raw.sequence, second.raw.sequence) == (((3,),), 1, 2)
    assert (refused.failure, refused.raw.message_bytes) == ("ValueError", 16)
    assert first.line and first.line < second.line
    assert beside(job, 1) == []


def test_results_and_exceptions_are_theirs(job: Job) -> None:
    """Kernels get the same arguments and return the same results, and none of our frames is in tracebacks."""
    said = job.ranks[0].lines()
    assert said[:2] == [{"result": [2.0, 2.0, 2.0], "seen": True}, {"refused": "no such device"}]
    assert said[-1] == {"left": []}
    assert job.ranks[0].err == job.ranks[1].err == ""


def test_collectives_are_counted_without_them(job: Job) -> None:
    """One-sided operations, and refused windows, do not change the sequence numbers of collectives."""
    for tape in job.tapes:
        collectives = [(one.name, one.raw.sequence, one.how) for one in tape.operations if one.group.epoch != BESIDE]
        counted = [(name, number) for name, number, how in collectives if how != "FAILED"]
        assert counted == [("all_reduce", 1), ("all_reduce", 2), ("all_reduce", 3)]
        windows = [one for one in tape.operations if one.name == "new_window"]
        assert [(one.raw.sequence, one.failure) for one in windows] in ([], [(3, "RuntimeError")])


class StandInWindow:
    """A window like those of nccl2: torch's own class has no constructor."""

    def put(self, tensor: Any, dst_rank: int, target_offset_nelems: int, async_op: bool) -> str:
        """Put a tensor."""
        return f"put to {dst_rank}"

    def wait_signal(self, peer_rank: int, async_op: bool) -> str:
        """Wait."""
        raise ConnectionError("gone")


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[DeviceRank]:
    """A rank with a tape."""
    with device_rank(tmp_path) as one:
        yield one


def test_windows(rank: DeviceRank) -> None:
    """Creating a window is a collective of its group.

    Operations on it are recorded as enqueued and counted separately.
    """

    class Group(ProcessGroup):
        def new_window(self, tensor: Any = None) -> Any:
            return StandInWindow()

    patches, made = Patches(), Windows(OneSided(lambda group: rank.group))
    made.hook(patches, Group, StandInWindow)
    window: Any = Group(0, 2).new_window(torch.ones(3))
    assert window.put(torch.ones(2), 1, 0, async_op=True) == "put to 1"
    with pytest.raises(ConnectionError):
        window.wait_signal(peer_rank=1, async_op=False)
    patches.restore()
    assert StandInWindow().put(torch.ones(2), 0, 0, False) == "put to 0"
    tape = read_tape(rank.reader)
    facts = [(one.name, one.how, one.group.epoch, one.raw.sequence, one.raw.peer) for one in tape.operations]
    assert facts == [
        ("new_window", "CALL", -1, 1, -1),
        ("put", "UNTRACKED", BESIDE, 1, 1),
        ("wait_signal", "FAILED", BESIDE, 2, 1),
    ]


def beside(job: Job, rank: int) -> list[Recorded]:
    """Operations of a rank other than its collectives."""
    return [one for one in job.tapes[rank].operations if one.group.epoch == BESIDE]
