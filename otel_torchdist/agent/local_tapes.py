"""Finds the tapes of a job directory as they appear."""

from __future__ import annotations

import logging
from pathlib import Path

from otel_torchdist.tape.directory import tapes_in
from otel_torchdist.tape.reader import TapeReader
from otel_torchdist.tape.records import TapeError

_logger = logging.getLogger("otel_torchdist")


class LocalTapes:
    """The tapes of one job directory.

    A process never opens its own tapes: closing a second descriptor would drop the lock that says it is alive.
    """

    def __init__(self, directory: Path) -> None:
        """Look into `directory`; nothing is opened yet."""
        self._directory = directory
        self._seen: set[Path] = set()

    def own(self, path: Path) -> None:
        """Leave out a tape that this process writes itself."""
        self._seen.add(path)

    def new(self, only_alive: bool) -> list[TapeReader]:
        """Open tapes that have appeared since the last call; one that cannot be read, or is a copy, is one warning.

        Args:
            only_alive: Leave out tapes whose writer is gone: they are of runs before.
        """
        found: list[TapeReader] = []
        for path in tapes_in(self._directory):
            if path in self._seen:
                continue
            self._seen.add(path)
            try:
                tape = TapeReader(path)
            except TapeError as error:
                _logger.warning("a tape cannot be read: %s", error)
                continue
            own_name = f"{tape.identity.nonce:016x}.tape"
            if path.name != own_name:  # its spans would be there twice, and its rank would seem to be dead
                _logger.warning("%s is left out: it is a copy of %s", path, own_name)
                tape.close()
                continue
            if only_alive and not tape.is_alive():
                tape.close()
                continue
            found.append(tape)
        return found
