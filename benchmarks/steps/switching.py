"""Switches recording on and off within a process, for comparisons that differences between processes would blur."""

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
    """The content of a tape.

    Attributes:
        operations: Number of operations on the tape, set at the end of the block; 0 without a tape.
    """

    operations: int = 0


@contextmanager
def recording(switch: Switch, tapes: Path, library: Library | None) -> Iterator[Recorded]:
    """Record the calls in the `with` block, or leave them unrecorded.

    Capture is always installed, and removed again for an unrecorded block, so that switching has the same effect on
    caches.

    Args:
        switch: Whether to record, and with which kernel.
        tapes: Directory for tapes.
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
    """Create a directory for the tapes of one block of this rank, and remove it after the block."""
    tapes.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=tapes) as own:
        yield Path(own)
