"""Which worlds a rank's program has made by hand: a small file beside its tape, for readers of other jobs' tapes.

Processes of different jobs on a node meet in such worlds. A reader that holds both tapes can see who waits for whom;
by these files it finds the other tape without opening all that there are.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, cast

from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import replace_at_once

MAX_WORLDS: Final = 32
MAX_FILE_BYTES: Final = 16 << 10
SUFFIX: Final = ".worlds"


class WorldsFile:
    """The worlds of one tape, the latest of them."""

    def __init__(self, tape: Path) -> None:
        """List none; there is no file yet."""
        self._tape = tape
        self._worlds: list[str] = []

    def add(self, world: str) -> None:
        """List one more world. That there is no room for the file is no harm: then the worlds are judged apart."""
        if world in self._worlds:
            return
        self._worlds = [*self._worlds, world][-MAX_WORLDS:]
        with contextlib.suppress(OSError):
            replace_at_once(
                worlds_path(self._tape), self._tape.with_suffix(f"{SUFFIX}.new"), json.dumps(self._worlds).encode()
            )


def worlds_path(tape: Path) -> Path:
    """Return the path of the file beside a tape."""
    return tape.with_suffix(SUFFIX)


def worlds_beside(tapes: Iterable[Path], owner: int | None = None) -> set[str]:
    """Return the worlds that are listed beside these tapes.

    Args:
        tapes: The tapes.
        owner: The user who must own the files; None for any.
    """
    return {world for tape in tapes for world in _read(worlds_path(tape), owner)}


def _read(path: Path, owner: int | None) -> list[str]:
    try:
        found = json.loads(read_regular(path, MAX_FILE_BYTES, owner))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(found, list):
        return []
    return [one for one in cast("list[object]", found)[:MAX_WORLDS] if isinstance(one, str)]
