"""Tapes of a written world, by rank."""

from __future__ import annotations

import contextlib
from pathlib import Path

from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.written_world import WrittenWorld


def write(world: WrittenWorld, folder: Path, capacity: int = 256) -> list[Path]:
    """Write a world; returns its tapes by ascending rank."""
    world.write(folder, capacity)
    return sorted(folder.glob("*.tape"), key=_rank_of)


def _rank_of(path: Path) -> int:
    with contextlib.closing(TapeReader(path)) as tape:
        return tape.identity.rank
