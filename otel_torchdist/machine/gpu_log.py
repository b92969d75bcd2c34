"""What was read of the GPUs, as totals and symptoms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from otel_torchdist.machine.model import Gpu
from otel_torchdist.machine.nvml import GpuReading
from otel_torchdist.machine.symptoms import SymptomLog
from otel_torchdist.machine.totals import Totals
from otel_torchdist.model.symptoms import Symptom, SymptomKind

MAX_XIDS: Final = 256
"""Pairs of GPU and Xid that are counted."""


class GpuLog:
    """Takes the readings of GPUs. Not thread-safe.

    Attributes:
        gpus: The newest reading, with counters as totals.
        xids: How many errors were reported, by GPU and Xid.
    """

    def __init__(self) -> None:
        self.gpus: tuple[Gpu, ...] = ()
        self.xids: Counter[tuple[str, int]] = Counter()
        self._totals = Totals()
        self._logs: dict[str, SymptomLog] = {}

    def take(self, reading: GpuReading, now_ns: int) -> None:
        """Take a reading."""
        for xid in reading.xids:
            if (xid.uuid, xid.number) in self.xids or len(self.xids) < MAX_XIDS:
                self.xids[xid.uuid, xid.number] += 1
            self._log(xid.uuid).note(Symptom(SymptomKind.XID, xid.at_ns, xid.number))
        self.gpus = tuple(self._counted(gpu, now_ns) for gpu in reading.gpus)
        self._totals.forget_unread()

    def lose_sight(self) -> None:
        """Note that the GPUs are not read any more; what was seen before still counts."""
        self.gpus = ()

    def symptoms(self, now_ns: int) -> Mapping[str, tuple[Symptom, ...]]:
        """Return what may explain a stall, by UUID."""
        return {uuid: found for uuid, log in self._logs.items() if (found := log.shown(now_ns))}

    def _log(self, uuid: str) -> SymptomLog:
        return self._logs.setdefault(uuid, SymptomLog())

    def _counted(self, gpu: Gpu, now_ns: int) -> Gpu:
        if gpu.is_lost:
            self._log(gpu.uuid).note(Symptom(SymptomKind.GPU_LOST, now_ns))
            return gpu
        if gpu.throttled:
            self._log(gpu.uuid).note(Symptom(SymptomKind.THROTTLED, now_ns, detail=", ".join(gpu.throttled)))
        if gpu.ecc_uncorrected is not None:
            grown = self._totals.growth((gpu.uuid, "growth"), gpu.ecc_uncorrected)
            if grown:
                self._log(gpu.uuid).note(Symptom(SymptomKind.ECC, now_ns, grown))
        return replace(
            gpu,
            ecc_corrected=self._total(gpu.uuid, "corrected", gpu.ecc_corrected),
            ecc_uncorrected=self._total(gpu.uuid, "uncorrected", gpu.ecc_uncorrected),
            nvlink_received=self._total(gpu.uuid, "received", gpu.nvlink_received),
            nvlink_transmitted=self._total(gpu.uuid, "transmitted", gpu.nvlink_transmitted),
        )

    def _total(self, uuid: str, name: str, value: int | None) -> int | None:
        return None if value is None else self._totals.total((uuid, name), value)
