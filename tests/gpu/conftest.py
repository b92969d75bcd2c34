"""Tests on a CUDA device: a world of one on NCCL, in this process, with capture switched on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

DEADLINE_S = 30.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a device."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def a_device() -> None:
    """Skip where there is none."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: torch.cuda.is_available() is false")


@dataclass
class World:
    """A world of one, whose tape is read as the test goes on.

    Attributes:
        cycles_per_s: How fast the device counts in `torch.cuda._sleep`.
    """

    capture: object
    cycles_per_s: float

    def __post_init__(self) -> None:
        from otel_torchdist.capture.session import Capture
        from otel_torchdist.tape.reader import TapeReader
        from otel_torchdist.tape.records import Operation

        assert isinstance(self.capture, Capture)
        recorder = self.capture.current_recorder()
        assert recorder is not None
        self.tape = recorder.tape
        self.reader = TapeReader.of_writer(self.tape)
        self.operations: dict[int, Operation] = {}

    def read(self) -> dict[int, object]:
        """All operations as they stand on the tape now, by number."""
        batch = self.reader.poll()
        for operation in (*batch.entered, *self.reader.open_operations(), *batch.ended):
            self.operations[operation.number] = operation
        return dict(self.operations)

    def sleep(self, seconds: float) -> None:
        """Keep the device busy on the current stream."""
        import torch

        torch.cuda._sleep(int(seconds * self.cycles_per_s))


