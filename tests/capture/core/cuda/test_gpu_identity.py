"""A rank writes down which GPU it uses, once it uses one, and never touches CUDA before."""

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
    """The devices whose properties torch was asked for; it knows their UUIDs."""
    asked: list[int] = []

    def properties(device: int) -> SimpleNamespace:
        asked.append(device)
        return SimpleNamespace(uuid=UUID)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return asked


def described(rank: DeviceRank) -> SelfDescription:
    """A rank that describes itself."""
    description = SelfDescription(False, lambda: rank.devices.first_cuda)
    description.begin(rank.recorder)
    return description


def test_gpu_of_the_first_operation(rank: DeviceRank, asked: list[int]) -> None:
    """Before an operation has run on a device, CUDA may not be initialised, and must not be by us; then it is asked."""
    description, tape = described(rank), rank.recorder.tape.path
    description.beat()
    assert (asked, gpu_of(tape)) == ([], "")
    rank.run(1 * MS)
    for _ in range(3):
        description.beat()
    assert len(asked) == 1
    assert gpu_of(tape) == f"GPU-{UUID}"


def test_torch_that_does_not_show_it(rank: DeviceRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch has no UUIDs, and a broken device no properties: then the GPU is not known, and nothing else."""
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
