"""Notes in each job directory that an attempt has been concluded, for the launcher that waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from otel_torchdist.agent.reading.attempt_ends import created_ns, directory_of, is_gone
from otel_torchdist.job.agent_notes import note_concluded
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.stall.peer_agents import RunSeen
from otel_torchdist.tape.reading.reader import TapeReader


class Conclusions:
    """The attempts that a reader has concluded."""

    def __init__(self) -> None:
        """Start without any."""
        self._noted: dict[Path, int] = {}

    def update(self, seen: Iterable[RunSeen], tapes: Mapping[int, TapeReader], is_awaited: bool) -> None:
        """Note the attempts of which nothing more is to be said, after all else has been reported.

        Args:
            seen: The runs, as of this turn.
            tapes: The tapes that are read, by their nonce.
            is_awaited: Whether a verdict on ranks that have ended is still pending.
        """
        worlds: dict[Path, list[WorldSnapshot]] = {}
        for one in seen:
            directory = directory_of(one.world, tapes)
            if directory is not None:
                worlds.setdefault(directory, []).append(one.world)
        for directory, there in worlds.items():
            newest_ns = max(map(created_ns, there))
            if is_awaited or not all(map(is_gone, there)) or self._noted.get(directory) == newest_ns:
                continue
            self._noted[directory] = newest_ns
            owner = next(tape.owner for tape in tapes.values() if tape.path.parent == directory)
            note_concluded(directory, newest_ns, owner)

    def leave(self, directory: Path) -> None:
        """Forget a job directory that is not read any more."""
        self._noted.pop(directory, None)
