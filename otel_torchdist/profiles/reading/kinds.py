"""Tells traces from dumps of the flight recorder, by how files begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_torchdist.flight.reading.sources import Skipped, find_files
from otel_torchdist.profiles.reading.document import MAX_TRACE_BYTES


@dataclass(frozen=True, slots=True)
class FoundKinds:
    """What lies at some paths.

    Attributes:
        traces: Paths of files that look like traces of a profiler.
        dumps: Paths of files that look like dumps of the flight recorder.
        trace_bytes: Size of the traces, as they are.
    """

    traces: tuple[str, ...]
    dumps: tuple[str, ...]
    trace_bytes: int


def kinds_in(paths: Sequence[Path]) -> FoundKinds:
    """Look at the files in folders and archives, and at how each of them begins."""
    traces: list[str] = []
    dumps: list[str] = []
    size = 0
    for file in find_files(paths, Skipped(), MAX_TRACE_BYTES):
        if file.is_trace:
            traces.append(file.path)
            size += file.size
        elif file.is_dump:
            dumps.append(file.path)
    return FoundKinds(tuple(traces), tuple(dumps), size)
