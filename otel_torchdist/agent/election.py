"""Which process reads the tapes of a job directory: the one that holds the lock in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from otel_torchdist.agent.local_tapes import LocalTapes
from otel_torchdist.tape.locks import try_lock, unlock
from otel_torchdist.tape.owned_files import open_or_create

LOCK_NAME: Final = "watch.lock"


class Election:
    """Decides which of a job's processes on this node watches all of their tapes for stalls.

    Attributes:
        directory: The job directory.
        tapes: Its tapes.
    """

    def __init__(self, directory: Path) -> None:
        """Stand for election in a job directory."""
        self.directory = directory
        self.tapes = LocalTapes(directory)
        self._file = open_or_create(directory / LOCK_NAME)
        self._won = False

    @property
    def is_won(self) -> bool:
        """Whether this process watches; asks for the lock as long as another process has it."""
        self._won = self._won or try_lock(self._file)
        return self._won

    def resign(self) -> None:
        """Leave it to another process."""
        if self._won:
            unlock(self._file)
        os.close(self._file)
