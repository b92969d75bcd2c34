"""A group with a backend for each device type counts the operations of each backend separately."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.testing._internal.distributed.fake_pg  # registers the backend `fake`
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]  # as torch's manual has it

from otel_torchdist.capture.core.calls.channels import MAX_TIMEOUTS
from otel_torchdist.model.kinds import Flag
from tests.support.devices.device_rank import DeviceRank, device_tensor
from tests.support.tapes.recorded import Recorded, read_tapes

CPU, CUDA = "cpu", "cuda"


@pytest.fixture(params=["cpu:gloo,cuda:fake", "gloo"])
def backends(request: pytest.FixtureRequest) -> Iterator[str]:
    """A default group with these backends."""
    dist.init_process_group(request.param, rank=0, world_size=1, store=HashStore())
    yield request.param
    dist.destroy_process_group()


def recorded(directory: Path, devices: list[str]) -> list[Recorded]:
    """Return the operations of a rank that has called on these devices, in order."""
    rank = DeviceRank(directory)
    group = dist.group.WORLD
    assert group is not None
    rank.use_group(group, (0,))
    for device in devices:
        tensor = device_tensor() if device == CUDA else torch.ones(4)
        rank.enter(tensor=tensor, keys=1 + (device == CUDA))
    rank.close()
    [tape] = read_tapes(directory)
    return tape.operations


def test_each_backend_has_its_own_numbers(memory: Path, backends: str) -> None:
    """CPU operations of another thread do not change the sequence numbers of CUDA operations."""
    orders = [CUDA, CPU, CUDA, CUDA, CPU], [CUDA, CUDA, CUDA, CPU, CPU]
    numbers: list[dict[str, list[int]]] = []
    for index, order in enumerate(orders):
        (memory / str(index)).mkdir(0o700)
        operations = recorded(memory / str(index), order)
        of = {device: [one.raw.sequence for one in operations if one.signature.device == device] for device in order}
        numbers.append(of)
        keys = {one.group.key for one in operations}
        assert len(keys) == (1 if backends == "gloo" else 2)
    if backends == "gloo":  # one backend runs all of them in one order, so all have to be compared
        assert numbers[0] != numbers[1]
    else:
        assert numbers[0] == numbers[1] == {CUDA: [1, 2, 3], CPU: [1, 2]}


def test_members_agree_on_the_group(memory: Path, backends: str) -> None:
    """A channel's name has its device and backend, and otherwise equals the group's name."""
    operations = recorded(memory, [CPU, CUDA])
    found = [(one.group.ranks, one.group.backend, one.group.device) for one in operations]
    if backends == "gloo":
        assert found == [((0,), "gloo", "")] * 2
    else:
        assert found == [((0,), "gloo", CPU), ((0,), "fake", CUDA)]
    assert [bool(one.raw.flags & Flag.ON_DEVICE) for one in operations] == [False, backends != "gloo"]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # newer versions of torch have a method for it
def test_timeouts_of_each_backend(memory: Path, backends: str) -> None:
    """Changes of timeout are recorded per channel as for a whole group: up to the bound, then as unknown."""
    rank = DeviceRank(memory)
    group = dist.group.WORLD
    assert group is not None
    rank.use_group(group, (0,))
    rank.enter(tensor=torch.ones(4), keys=1)
    for seconds in range(40, 40 + MAX_TIMEOUTS + 2):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)
        rank.group.renew_timeout()
        rank.enter(tensor=torch.ones(4), keys=1)
    rank.close()
    [tape] = read_tapes(memory)
    timeouts = [one.group.timeout_ms // 1000 for one in tape.operations]
    assert timeouts == [1800, *range(40, 40 + MAX_TIMEOUTS - 1), 0, 0, 0]


def test_steps_by_windows(memory: Path, backends: str) -> None:
    """64 collectives of the default group make a step, on whichever of its backends they run."""
    rank = DeviceRank(memory)
    group = dist.group.WORLD
    assert group is not None
    rank.use_group(group, (0,))
    rank.group.is_default = True
    rank.groups.default = rank.group
    rank.steps.recorder = rank.recorder
    for number in range(150):
        on_cpu = number % 3 == 0
        rank.enter(tensor=torch.ones(4) if on_cpu else device_tensor(), keys=1 + (not on_cpu))
    rank.close()
    [tape] = read_tapes(memory)
    assert [(mark.step, mark.sequence) for mark in tape.steps] == [(0, 64), (1, 128)], backends
    assert [sum(one.raw.step == step for one in tape.operations) for step in range(3)] == [64, 64, 22]
