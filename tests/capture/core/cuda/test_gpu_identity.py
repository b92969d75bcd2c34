"""A rank records which GPU it uses after its first operation on it, and never initializes CUDA itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from otel_torchdist.capture.core.run.description import SelfDescription
from otel_torchdist.node.job.description_file import gpu_of, read_description
from tests.support.devices.device_rank import DeviceRank, device_rank

UUID = "aaaaaaaa-0000-0000-0000-000000000000"
MS = 1_000_000


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[DeviceRank]:
    """A rank with a simulated device."""
    with device_rank(tmp_path) as one:
        yield one


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices whose properties were queried; torch knows their UUIDs."""
    asked: list[int] = []

    def properties(device: int) -> SimpleNamespace:
        asked.append(device)
        return SimpleNamespace(uuid=UUID)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return asked


def described(rank: DeviceRank) -> SelfDescription:
    """A rank that writes its description."""
    description = SelfDescription(False, lambda: rank.devices.first_cuda)
    description.begin(rank.recorder)
    return description


def test_gpu_of_the_first_operation(rank: DeviceRank, asked: list[int]) -> None:
    """The GPU is only queried after an operation has run on it, so capture never initializes CUDA."""
    description, tape = described(rank), rank.recorder.tape.path
    description.beat()
    assert (asked, gpu_of(tape)) == ([], "")
    rank.run(1 * MS)
    for _ in range(3):
        description.beat()
    assert len(asked) == 1
    assert gpu_of(tape) == f"GPU-{UUID}"


def test_torch_that_does_not_show_it(rank: DeviceRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without UUIDs in torch, or with a failing device, only the GPU is unknown."""
    for properties in (SimpleNamespace(), None):

        def fail(device: int, properties: SimpleNamespace | None = properties) -> SimpleNamespace:
            if properties is None:
                raise RuntimeError("CUDA error: unknown error")
            return properties

        monkeypatch.setattr(torch.cuda, "get_device_properties", fail)
        description = described(rank)
        rank.run(1 * MS)
        description.beat()
        found = read_description(rank.recorder.tape.path)
        assert found is not None and found.gpu == ""
