"""What was read of the GPUs, as symptoms."""

from __future__ import annotations

from collections.abc import Mapping

from otel_torchdist.machine.nvml import GpuReading
from otel_torchdist.machine.symptoms import ErrorCounters, SymptomLog
from otel_torchdist.model.symptoms import Symptom, SymptomKind


class GpuLog:
    """Takes the readings of GPUs. Not thread-safe."""

    def __init__(self) -> None:
        self._memory_errors = ErrorCounters()
        self._logs: dict[str, SymptomLog] = {}

    def take(self, reading: GpuReading, now_ns: int) -> None:
        """Take a reading."""
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
        """Return what may explain a stall, by UUID."""
        return {uuid: found for uuid, log in self._logs.items() if (found := log.shown(now_ns))}

    def _note(self, uuid: str, symptom: Symptom) -> None:
        self._logs.setdefault(uuid, SymptomLog()).note(symptom)
