"""Tells traces from dumps of the flight recorder, by how files begin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from otel_torchdist.flight.reading.sources import FoundFile, Skipped, find_files
from otel_torchdist.profiles.reading.document import MAX_TRACE_BYTES

PICKLE: Final = b"\x80"
_SIGNS: Final = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|displayTimeUnit|traceName)"\s*:'
)
_EXECUTION: Final = re.compile(rb'"schema"\s*:\s*"')


@dataclass(slots=True)
class FoundKinds:
    """What lies at some paths.

    Attributes:
        traces: Files that look like traces, by their paths.
        dumps: Files that may be dumps of the flight recorder.
    """

    traces: list[str] = field(default_factory=list[str])
    dumps: list[str] = field(default_factory=list[str])


def is_trace(file: FoundFile) -> bool:
    """Whether a file looks like a trace, of whatever tool."""
    start = file.start
    return not start.startswith(PICKLE) and (_SIGNS.search(start) is not None or _EXECUTION.search(start) is not None)


def kinds_in(paths: Sequence[Path]) -> FoundKinds:
    """Look at the files in folders and archives, and at how each of them begins."""
    found = FoundKinds()
    for file in find_files(paths, Skipped(), MAX_TRACE_BYTES):
        (found.traces if is_trace(file) else found.dumps).append(file.path)
    return found
