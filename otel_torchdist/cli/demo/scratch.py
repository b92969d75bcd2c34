"""Where the demo's job leaves its tapes and logs: in directories that go with the demo."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.tape.directory_lock import alone_in, using

_PREFIX: Final = "demo-"


@dataclass(frozen=True, slots=True)
class Scratch:
    """Directories of one demo.

    Attributes:
        tapes: Base directory of its tapes, in memory.
        logs: What torchrun and its ranks write.
    """

    tapes: Path
    logs: Path


@contextlib.contextmanager
def scratch(base: Path) -> Generator[Scratch]:
    """Directories below `base` and among the temporary files, removed at the end.

    What demos before have left that were killed goes at the beginning.

    Raises:
        TapeError: The directory for tapes cannot be created.
    """
    for directory in base.glob(f"{_PREFIX}*"):
        with alone_in(directory) as nobody_uses_it:
            if nobody_uses_it:
                shutil.rmtree(directory, ignore_errors=True)
    tapes = base / f"{_PREFIX}{secrets.token_hex(8)}"
    with tempfile.TemporaryDirectory(prefix="torchdist-demo-") as logs, using(tapes):
        try:
            yield Scratch(tapes, Path(logs))
        finally:
            shutil.rmtree(tapes, ignore_errors=True)
