"""A tape of a simulated busy training job, written as fast as a benchmark reads it."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Final

from otel_torchdist.model.kinds import Flag, How, RecordKind, RunIdState
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.layout import Word
from otel_torchdist.tape.writer import TapeWriter

WORLD_SIZE: Final = 8
CAPACITY: Final = 16_384
CALLS_PER_STEP: Final = 40
SHAPES: Final = ((4096, 1024), (1024, 4096), (1024,), (50_257, 1024))
SYNCHRONOUS_NS: Final = 80_000
IN_FLIGHT: Final = 2
"""Number of asynchronous calls in flight at any time."""


class BusyTape:
    """The tape. Half of the calls are synchronous, half are asynchronous and waited for two calls later.

    Attributes:
        calls: Number of calls written so far.
    """

    def __init__(self, directory: Path, rank: int = 0, run_id: int = 1) -> None:
        self.writer = TapeWriter(directory, identify(rank, rank, WORLD_SIZE, CAPACITY))
        self.writer.set_run_id(run_id, RunIdState.AGREED)
        names = self.writer.names
        pair = (rank // 2 * 2, rank // 2 * 2 + 1)
        groups = [
            names.intern(GroupName("0", "default_pg", tuple(range(WORLD_SIZE)), 0, "gloo", True)),
            names.intern(GroupName("1", "mesh_tp", pair, 0, "gloo", True)),
        ]
        signatures = [
            names.intern(SignatureName(operation, "sum", (shape,), ("bfloat16",), "cpu", 1))
            for operation, shape in product(("all_reduce", "all_gather_into_tensor", "broadcast"), SHAPES)
        ]
        sites = [names.intern(CallSiteName("Trainer.step", "/srv/train/trainer.py", line)) for line in range(40, 50)]
        label = names.intern("FSDP::all_gather (layers.3)")
        self._kinds = [
            (groups[number % 2], signature, sites[number % len(sites)], label)
            for number, signature in enumerate(signatures)
        ]
        self.calls = 0
        self._in_flight: list[tuple[int, int]] = []

    def write(self, calls: int) -> None:
        """Write calls, and the ends of steps between them."""
        for _ in range(calls):
            self.calls += 1
            self._write_call()
            if self.calls % CALLS_PER_STEP == 0:
                self.writer.step_ended(self.calls // CALLS_PER_STEP - 1, time.monotonic_ns(), self.calls)

    def _write_call(self) -> None:
        is_async = self.calls % 2 == 0
        now = time.monotonic_ns()
        group, signature, site, label = self._kinds[self.calls % len(self._kinds)]
        number = self.writer.begin(
            now, (self.calls - 1) // CALLS_PER_STEP, self.calls, 8_388_608, group, signature, site, label, -1, 0, 1,
            RecordKind.OPERATION, Flag.ASYNC if is_async else 0,
        )  # fmt: skip
        if not is_async:
            self.writer.complete(number, now, now + SYNCHRONOUS_NS, How.WAIT)
            return
        self.writer.mark(number, Word.RETURNED, 20_000, How.CALL)
        self._in_flight.append((number, now))
        if len(self._in_flight) > IN_FLIGHT:
            self._wait(*self._in_flight.pop(0))

    def _wait(self, number: int, entered_ns: int) -> None:
        now = time.monotonic_ns()
        self.writer.mark(number, Word.WAIT_ENTERED, now - entered_ns, How.CALL)
        self.writer.complete(number, entered_ns, now + SYNCHRONOUS_NS, How.WAIT)
