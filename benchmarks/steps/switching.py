"""Switches recording on and off in a process that goes on: for comparisons that two processes would blur."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

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
    assert library is not None or switch is not Switch.NATIVE
    with directory_in(tapes) as own:
        capture = Capture(lambda: own, Config().tape_records, library=library if switch is Switch.NATIVE else None)
        capture.install()
        if not switch.is_recorded:
            capture.uninstall()
        recorded = Recorded()
        yield recorded
        capture.uninstall()
        recorded.operations = sum(operations_on_tapes(own))


@contextmanager
def directory_in(tapes: Path) -> Iterator[Path]:
    """A directory for the tapes of one block, which no other rank has, and which goes with it."""
    tapes.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=tapes) as own:
        yield Path(own)
