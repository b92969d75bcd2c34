"""The file beside a tape that lists the worlds of the rank's standalone process groups.

Processes of different jobs on a node can share such a world. A reader of both tapes can see who waits for whom; with
these files it finds the other tape without opening all tapes of the node.
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
    """The file of one tape. It lists the newest `MAX_WORLDS` worlds."""

    def __init__(self, tape: Path) -> None:
        """Start with an empty list and no file."""
        self._tape = tape
        self._worlds: list[str] = []

    def add(self, world: str) -> None:
        """Add a world. If the file cannot be written, the jobs in this world are judged separately."""
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
    """Return the worlds listed beside these tapes.

    Args:
        tapes: The tapes.
        owner: The user who must own the files; None for any.
    """
    return {world for tape in tapes for world in _read(worlds_path(tape), owner)}


def _read(path: Path, owner: int | None) -> list[str]:
    try:
        worlds = json.loads(read_regular(path, MAX_FILE_BYTES, owner))
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(worlds, list):
        return []
    return [world for world in cast("list[object]", worlds)[:MAX_WORLDS] if isinstance(world, str)]
