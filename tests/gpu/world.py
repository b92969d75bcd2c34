"""A world of one on NCCL, and a clock to compare the tape with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist

from otel_torchdist.capture.session import Capture
from otel_torchdist.capture.tensors.choice import Observers
from otel_torchdist.model.operations import Operation
from otel_torchdist.native.library import Library
from otel_torchdist.tape.reading.reader import TapeReader

DEVICE = torch.device("cuda", 0)
DEADLINE_S = 30.0
LARGE = 1 << 28
"""Enough bytes for a device to take a measurable time to copy."""


class TorchClock:
    """Dates torch's own events, independently of the code under test."""

    def __init__(self) -> None:
        torch.cuda.synchronize()
        self._anchor = torch.cuda.Event(enable_timing=True)
        before_ns = time.monotonic_ns()
        self._anchor.record()
        self._anchor.synchronize()
        self._anchored_ns = (before_ns + time.monotonic_ns()) // 2

    def date(self, event: torch.cuda.Event) -> int:
        """When an event happened, in nanoseconds of the monotonic clock; waits for it."""
        event.synchronize()
        return self._anchored_ns + round(self._anchor.elapsed_time(event) * 1e6)


def mark() -> torch.cuda.Event:
    """An event on the current stream, recorded now."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@dataclass
class World:
    """A world of one rank.

    Attributes:
        capture: Switched on.
        reader: Reader of this process's tape.
        cycles_per_s: Rate of the device's counter for `torch.cuda._sleep`.
        operations: Operations read from the tape so far.
    """

    capture: Capture
    reader: TapeReader
    cycles_per_s: float = 1e9
    operations: dict[int, Operation] = field(default_factory=dict[int, Operation])

    def sleep(self, seconds: float) -> None:
        """Keep the device busy on the current stream."""
        torch.cuda._sleep(int(seconds * self.cycles_per_s))

    def read(self) -> dict[int, Operation]:
        """All operations as they are on the tape now, by number."""
        batch = self.reader.poll()
        for operation in (*batch.entered, *self.reader.open_operations(), *batch.ended):
            self.operations[operation.number] = operation
        return self.operations

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "what the test waits for did not happen"
            time.sleep(0.005)

    def record(self, call: Callable[[], object]) -> list[Operation]:
        """Call what issues operations, and wait until they have ended on the tape."""
        before = max(self.read(), default=0)
        call()
        torch.cuda.synchronize()
        self.until(lambda: not any(one.is_open for one in self.read().values()))
        return [operation for number, operation in sorted(self.operations.items()) if number > before]


def begin_world(folder: Path, library: Library | None = None, observers: Observers | None = None) -> World:
    """Create the default group with capture switched on, and run a first collective; arguments as for `Capture`."""
    torch.cuda.set_device(DEVICE)
    capture = Capture(lambda: folder, 4096, library=library, observers=observers)
    capture.install()
    store = f"file://{folder}/store"
    dist.init_process_group("nccl", init_method=store, rank=0, world_size=1, device_id=DEVICE)
    recorder = capture.current_recorder()
    assert recorder is not None
    world = World(capture, TapeReader.of_writer(recorder.tape))
    torch.cuda._sleep(1_000_000)
    begin = mark()
    torch.cuda._sleep(50_000_000)
    end = mark()
    end.synchronize()
    world.cycles_per_s = 50_000_000 / (begin.elapsed_time(end) / 1000)
    world.record(lambda: dist.all_reduce(torch.ones(8, device=DEVICE)))
    return world


def end_world(world: World) -> None:
    """Destroy the group and switch capture off."""
    dist.destroy_process_group()
    world.capture.uninstall()
