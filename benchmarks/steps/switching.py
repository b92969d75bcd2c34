"""Switches recording on and off in a process that goes on: for comparisons that two processes would blur."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results.recorded import operations_on_tapes
from benchmarks.steps.training import Switch
from otel_torchdist.capture.session import Capture
from otel_torchdist.config import Config
from otel_torchdist.native.library import Library


@dataclass(slots=True)
class Recorded:
    """What a tape holds.

    Attributes:
        operations: How many operations were recorded, once it is over; 0 where there was no tape.
    """

    operations: int = 0


@contextmanager
def recording(switch: Switch, tapes: Path, library: Library | None) -> Iterator[Recorded]:
    """Record what is done inside, or not.

    Capture is installed in any case, and removed again where nothing is recorded, so that the traces of switching in
    caches are the same.

    Args:
        switch: Whether, and with which kernel.
        tapes: A directory for tapes.
        library: The native library; needed for its kernel.
    """
    own = tapes / str(time.monotonic_ns())
    own.mkdir(parents=True)
    assert library is not None or switch is not Switch.NATIVE
    capture = Capture(lambda: own, Config().tape_records, library=library if switch is Switch.NATIVE else None)
    capture.install()
    if not switch.is_recorded:
        capture.uninstall()
    recorded = Recorded()
    yield recorded
    capture.uninstall()
    recorded.operations = sum(operations_on_tapes(own))
    for file in own.iterdir():
        file.unlink()
    own.rmdir()
