"""Reads the machine every few seconds, on a separate thread: reading some files makes the kernel query a device."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from otel_torchdist import guard
from otel_torchdist.model.rank_state.symptoms import Symptom, SymptomKind
from otel_torchdist.node.machine.gpus import GpuProcess
from otel_torchdist.node.machine.nvml import GpuReading
from otel_torchdist.node.machine.reader import ErrorCounters, MachineReader, MachineReading, SymptomLog, WatchedRank
from otel_torchdist.system.files.kept import move_up

READ_S: Final = 5.0
STOP_S: Final = 1.0


class MachineWatch:
    """A thread that reads the state of the machine, from `start` to `stop`.

    `update`, `reading` and `symptoms_of` do not block, and may be used on any thread.

    Attributes:
        reading: The newest reading; None before the first.
    """

    def __init__(
        self, reader: MachineReader | None = None, gpus: GpuProcess | None = None, interval_s: float = READ_S
    ) -> None:
        """Prepare the thread.

        Args:
            reader: Reads everything except the GPUs.
            gpus: Reads the GPUs.
            interval_s: Seconds between two readings.
        """
        self.reading: MachineReading | None = None
        self._reader = reader or MachineReader()
        self._gpus = gpus or GpuProcess()
        self._log = GpuLog()
        self._interval_s = interval_s
        self._ranks: Sequence[WatchedRank] = ()
        self._is_stopping = self._is_due = False
        self._wake = move_up(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self._thread = threading.Thread(target=self._run, name="torchdist-machine", daemon=True)

    def start(self) -> MachineWatch:
        """Start the thread; return this watch."""
        self._thread.start()
        return self

    def update(self, ranks: Sequence[WatchedRank]) -> None:
        """Replace the ranks whose processes are read."""
        is_first = bool(ranks) and not self._ranks
        self._ranks = ranks
        if is_first:  # the job may end before the next regular reading
            self._is_due = True
            os.eventfd_write(self._wake, 1)

    def symptoms_of(self, nonce: int) -> tuple[Symptom, ...]:
        """Return the symptoms that may explain a stall of the rank whose tape has this nonce."""
        reading = self.reading
        return reading.symptoms_of(nonce) if reading is not None else ()

    def stop(self) -> None:
        """End the thread; wait for it for at most `STOP_S`, because a device may block it. Idempotent."""
        if self._is_stopping:
            return
        self._is_stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        self._gpus.stop()
        if not self._thread.is_alive():
            os.close(self._wake)

    def _run(self) -> None:
        due_s = 0.0
        while not self._is_stopping:
            with guard.guarded("the machine"):
                now_s = time.monotonic()
                reading, is_due = self.reading, self._is_due or now_s >= due_s
                if is_due:
                    self._is_due, due_s = False, now_s + self._interval_s
                    reading = self._reader.read(self._ranks, time.monotonic_ns())
                if self._read_gpus(now_s) or is_due:
                    self.reading = self._with_gpus(reading)
            self._wait(due_s)

    def _read_gpus(self, now_s: float) -> bool:
        readings = self._gpus.check(now_s)
        for reading in readings:
            self._log.take(reading, time.monotonic_ns())
        return bool(readings)

    def _with_gpus(self, reading: MachineReading | None) -> MachineReading | None:
        if reading is None:
            return None
        return replace(reading, symptoms_of_gpus=self._log.symptoms(time.monotonic_ns()))

    def _wait(self, due_s: float) -> None:
        """Wait until the next reading is due, a reading of the GPUs arrives, or the watch is stopped."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._gpus.descriptor >= 0:
            poll.register(self._gpus.descriptor, select.POLLIN)
        left_s = max(due_s - time.monotonic(), 0)
        try:
            ready = dict(poll.poll(left_s * 1e3))
        except OSError:  # the limit of descriptors was lowered below the number polled
            time.sleep(min(left_s, STOP_S))
            return
        if self._wake in ready:
            os.eventfd_read(self._wake)


# --- symptoms of GPUs -------------------------------------------------------------------------------------------------
# Converts readings of the GPUs to symptoms.


class GpuLog:
    """The symptoms of the GPUs. Not thread-safe."""

    def __init__(self) -> None:
        self._memory_errors = ErrorCounters()
        self._logs: dict[str, SymptomLog] = {}

    def take(self, reading: GpuReading, now_ns: int) -> None:
        """Add the symptoms of a reading."""
        for xid in reading.xids:
            self._note(xid.uuid, Symptom(SymptomKind.XID, xid.at_ns, xid.number))
        for gpu in reading.gpus:
            if gpu.is_lost:
                self._note(gpu.uuid, Symptom(SymptomKind.GPU_LOST, now_ns))
            if gpu.throttled:
                self._note(gpu.uuid, Symptom(SymptomKind.THROTTLED, now_ns, detail=", ".join(gpu.throttled)))
        counts = {gpu.uuid: gpu.ecc_uncorrected for gpu in reading.gpus if gpu.ecc_uncorrected is not None}
        for uuid, errors in self._memory_errors.grown(counts).items():
            self._note(uuid, Symptom(SymptomKind.ECC, now_ns, errors))

    def symptoms(self, now_ns: int) -> Mapping[str, tuple[Symptom, ...]]:
        """Return the symptoms of each GPU, by UUID."""
        return {uuid: symptoms for uuid, log in self._logs.items() if (symptoms := log.recent(now_ns))}

    def _note(self, uuid: str, symptom: Symptom) -> None:
        self._logs.setdefault(uuid, SymptomLog()).note(symptom)
