"""`nccl` from torch 2.15 on (nccl2): Works for synchronous operations, one stream, joint waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from otel_torchdist.capture.core.groups.groups import Groups
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL
from otel_torchdist.model.kinds import How
from tests.support.devices.device_rank import MAIN_STREAM, NO_KEYS, DeviceRank, DeviceTensor, device_rank
from tests.support.devices.simulated_device import MS

CLOCK_ERROR_NS = 2 * MS


@pytest.fixture
def rank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DeviceRank]:
    """A rank with a device; a parameter names its backend."""
    with device_rank(tmp_path, backend=getattr(request, "param", "nccl2")) as one:
        yield one


@pytest.mark.parametrize("rank", ["nccl2", "nccl-lazy"], indirect=True)
def test_synchronous_operations_are_timed_by_events(rank: DeviceRank) -> None:
    """Synchronous operations return a Work on the caller's stream: an event ends them, however late the watchdog is."""
    issued = rank.run(None)
    rank.device.release(issued.kernel)
    [operation] = rank.until_ended(issued)
    assert (operation.started_how, operation.how) == (How.EVENT, How.EVENT)
    assert operation.completed_ns == pytest.approx(issued.kernel.end_ns, abs=CLOCK_ERROR_NS)
    assert issued.result is not None
    assert not issued.result.done()


def test_sends_are_behind_collectives(rank: DeviceRank) -> None:
    """A send behind a collective in the queue has not started, so it is no evidence against its peer."""
    collective = rank.start(None)
    send = rank.start(1 * MS, "send", peer=0)
    rank.until(lambda: rank[collective].started_ns)
    looks = rank.device.asked
    rank.until(lambda: rank.device.asked > looks + 2)
    assert rank[send].is_queued
    assert rank[send].waiting_since_ns is None
    rank.device.release(collective.kernel)
    rank.until_ended(collective, send, watchdog=True)


def test_peers_of_the_lazy_backend_have_streams_of_their_own(tmp_path: Path) -> None:
    """With nccl-lazy, each pair of peers has its own communicator and stream."""
    with device_rank(tmp_path, backend="nccl-lazy") as rank:
        collective = rank.start(None)
        send = rank.start(None, "send", peer=0, stream=11)
        rank.until(lambda: rank[collective].started_ns and rank[send].started_ns)


@pytest.mark.parametrize("rank", ["nccl", "nccl2"], indirect=True)
def test_a_wait_for_several(rank: DeviceRank) -> None:
    """A wait for several operations gives the end of the last one, and of no other."""
    first, last = rank.start(5 * MS), rank.start(400 * MS)
    rank.device.use_stream(MAIN_STREAM)
    rank.wait_tensors(NO_KEYS, [first.tensor, last.tensor])
    assert not rank.cuda.written
    before, after = rank.until_ended(first, last, watchdog=True)
    assert (before.how, after.how) == (How.WATCHDOG, How.EVENT)
    assert after.completed_ns == pytest.approx(last.kernel.end_ns, abs=CLOCK_ERROR_NS)


def test_an_end_is_as_coarse_as_the_one_ahead(rank: DeviceRank) -> None:
    """If a start is the predecessor's watchdog time, the end is marked as a watchdog time, too."""
    first, last = rank.start(5 * MS), rank.start(5 * MS)
    rank.wait_tensors(NO_KEYS, [first.tensor, last.tensor])
    rank.until(lambda: rank.device.is_over(last.kernel))
    before, after = rank.until_ended(first, last, watchdog=True)
    assert after.started_ns == before.completed_ns
    assert after.how is How.WATCHDOG


def test_a_wait_for_several_groups(rank: DeviceRank) -> None:
    """A wait for operations of several groups gives no exact end: it is unknown which stream released it."""
    first = rank.start(20 * MS)
    rank.group = Groups().register(rank.recorder, rank.process_group, (0, 1), 1)
    other = rank.start(20 * MS, stream=11)
    rank.wait_tensors(NO_KEYS, [first.tensor, other.tensor])
    assert {operation.how for operation in rank.until_ended(first, other, watchdog=True)} == {How.WATCHDOG}


class UnplacedTensor(DeviceTensor):
    """A tensor that raises when its device is queried, because this function lacks `self`."""

    get_device: Any = len


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_an_error_of_ours_in_a_wait(rank: DeviceRank, several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If our code raises in a wait, the program's wait works as before."""
    monkeypatch.setenv(OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL, "false")
    issued = rank.start(1 * MS)
    tensor = torch.ones(4).as_subclass(UnplacedTensor)
    waited = rank.wait_tensors(NO_KEYS, [tensor])[0] if several else rank.wait_tensor(NO_KEYS, tensor)
    assert waited is tensor
    rank.until_ended(issued, watchdog=True)
