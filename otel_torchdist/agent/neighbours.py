"""Finds the other jobs on this node whose processes meet those of an agent's own in worlds that were made by hand.

And what may be other parts of a launch that waits for ranks: started by hand, ranks have a job for each address. The
tapes are read only to see who waits for whom; their own agents export them. Which agent judges is no matter of
agreement: all see the same tapes, and the largest of the runs that meet is judged by the one that reads it. A launch is
judged by the agents of all its parts.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.errors import TapeError
from otel_torchdist.job.directory import job_directories, tapes_in
from otel_torchdist.job.tapes import LocalTapes
from otel_torchdist.job.worlds import worlds_beside
from otel_torchdist.tape.reading.reader import TapeReader

SEARCH_S: Final = 1.0
WAITED_NS: Final = 2_000_000_000
"""A launch that makes progress is over by then."""
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
        tapes = [tape for tape in reader.tapes if tape.path.parent in directories]
        own = worlds_beside((tape.path for tape in tapes), owner)
        lacking = _launches_that_wait(tapes)
        if not own and not lacking:
            return
        for base in {directory.parent for directory in directories}:
            for directory in job_directories(base):
                if directory in self._tapes or directory in directories:
                    continue
                there = tapes_in(directory)
                if own & worlds_beside(there, owner):
                    self._take_up(directory, owner, "its ranks are in a world with processes of another job")
                elif any(launch.may_be_completed_by(there, owner) for launch in lacking):
                    self._take_up(directory, owner, "its launch lacks ranks that may wait elsewhere")
        for known in self._tapes.values():
            self._follow(known, reader)

    def _take_up(self, directory: Path, owner: int, why: str) -> None:
        if len(self._tapes) < MAX_NEIGHBOURS:
            self._tapes[directory] = LocalTapes(directory, owner)
            _logger.info("%s: watching %s too", why, directory)

    def _follow(self, tapes: LocalTapes, reader: Reader) -> None:
        room = MAX_TAPES - reader.neighbours
        for tape in tapes.new(only_alive=True, most=room) if room > 0 else ():
            if reader.knows(tape.identity.nonce):
                tape.close()
            else:
                reader.follow(tape, exported=False, is_neighbour=True)


class _Launch(NamedTuple):
    """A launch that lacks ranks.

    Attributes:
        world_size: How many ranks it should have.
        ranks: Its ranks.
    """

    world_size: int
    ranks: frozenset[int]

    def may_be_completed_by(self, paths: Sequence[Path], owner: int) -> bool:
        """Whether the live tapes of another job are of ranks that it lacks, and wait in a launch too."""
        living: list[TapeReader] = []
        with contextlib.ExitStack() as stack:
            for path in paths[:MAX_TAPES]:
                with contextlib.suppress(TapeError):
                    tape = stack.enter_context(contextlib.closing(TapeReader(path, owner)))
                    if tape.is_alive():
                        living.append(tape)
            launches = _launches_that_wait(living)
        return len(launches) == 1 and self.world_size == launches[0].world_size and not self.ranks & launches[0].ranks


def _launches_that_wait(tapes: Iterable[TapeReader]) -> list[_Launch]:
    """The launches that have waited for ranks for a while; a job of which a rank knows its run is in none."""
    launching: dict[Path, list[TapeReader]] = {}
    for tape in tapes:
        launching.setdefault(tape.path.parent, []).append(tape)
    now_ns = time.monotonic_ns()
    found: list[_Launch] = []
    for group in launching.values():
        identities = [tape.identity for tape in group]
        size, ranks = identities[0].world_size, frozenset(identity.rank for identity in identities)
        has_waited = now_ns - max(identity.monotonic_ns for identity in identities) >= WAITED_NS
        if has_waited and len(ranks) < size and not any(tape.status().run_id for tape in group):
            found.append(_Launch(size, ranks))
    return found
