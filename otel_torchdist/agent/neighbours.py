"""Finds the other jobs on this node whose processes meet those of an agent's own in worlds that were made by hand.

Their tapes are read only to see who waits for whom; their own agents export them. Which agent judges is no matter of
agreement: all see the same tapes, and the largest of the runs that meet is judged by the one that reads it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.job.directory import job_directories, tapes_in
from otel_torchdist.job.tapes import LocalTapes
from otel_torchdist.job.worlds import worlds_beside

SEARCH_S: Final = 1.0
MAX_NEIGHBOURS: Final = 16
"""Other jobs that are read."""
MAX_TAPES: Final = 256
"""Tapes of other jobs that are read."""

_logger = logging.getLogger("otel_torchdist")


class Neighbours:
    """The jobs that are read beside those of an agent."""

    def __init__(self) -> None:
        """Know none yet."""
        self._tapes: dict[Path, LocalTapes] = {}
        self._searched_at = float("-inf")

    def update(self, reader: Reader, directories: Collection[Path], owner: int) -> None:
        """Have `reader` follow the live tapes of jobs that meet those in `directories`, once a second.

        Args:
            reader: Reads the tapes.
            directories: The job directories that the agent reads; all are this user's.
            owner: The user.
        """
        if time.monotonic() - self._searched_at < SEARCH_S:
            return
        self._searched_at = time.monotonic()
        own = worlds_beside((tape.path for tape in reader.tapes if tape.path.parent in directories), owner)
        if not own:
            return
        for base in {directory.parent for directory in directories}:
            for directory in job_directories(base):
                is_known = directory in self._tapes or directory in directories
                if not is_known and own & worlds_beside(tapes_in(directory), owner):
                    self._take_up(directory, owner)
        for tapes in self._tapes.values():
            self._follow(tapes, reader)

    def _take_up(self, directory: Path, owner: int) -> None:
        if len(self._tapes) < MAX_NEIGHBOURS:
            self._tapes[directory] = LocalTapes(directory, owner)
            _logger.info("its ranks are in a world with processes of another job: watching %s too", directory)

    def _follow(self, tapes: LocalTapes, reader: Reader) -> None:
        room = MAX_TAPES - reader.neighbours
        for tape in tapes.new(only_alive=True, most=room) if room > 0 else ():
            if reader.knows(tape.identity.nonce):
                tape.close()
            else:
                reader.follow(tape, exported=False, is_neighbour=True)
