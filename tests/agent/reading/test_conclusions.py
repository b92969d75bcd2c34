"""An attempt is concluded once all its ranks are gone and nothing more is to be said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from otel_torchdist.agent.reading.conclusions import Conclusions
from otel_torchdist.job.concluded import concluded_ns
from otel_torchdist.stall.seen import RunSeen
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.world.model import RankView, WorldSnapshot
from tests.agent.reading.test_attempt_ends import another, killed
from tests.support.tapes.fake_tape import FakeTape


class Noted:
    """The conclusions of a reader whose tapes stand for the ranks of simulated worlds."""

    def __init__(self, directory: Path) -> None:
        self._conclusions = Conclusions()
        self.directory = directory
        self._tapes: dict[int, TapeReader] = {}

    def turn(self, *worlds: WorldSnapshot, is_awaited: bool = False) -> int:
        """Follow a turn in which these worlds were seen; returns up to which tape the job is concluded."""
        for view in _views(worlds):
            if view.nonce not in self._tapes:
                self._tapes[view.nonce] = FakeTape(self.directory, view.rank, nonce=view.nonce).reader
        self._conclusions.update([RunSeen(world, None, None, None) for world in worlds], self._tapes, is_awaited)
        return concluded_ns(self.directory)


def _views(worlds: Iterable[WorldSnapshot]) -> list[RankView]:
    return [view for world in worlds for view in world.ranks.values()]


def test_attempt_that_is_over(tmp_path: Path) -> None:
    """Not while a verdict is pending, nor while a later attempt runs."""
    noted = Noted(tmp_path)
    world, _ = killed()
    created_ns = max(view.created_ns for view in world.ranks.values())
    assert noted.turn(world, is_awaited=True) == 0
    assert noted.turn(world) == created_ns
    later = another(world)
    assert noted.turn(world, later) == created_ns
    ended = {rank: dataclasses.replace(view, alive=False) for rank, view in later.ranks.items()}
    assert noted.turn(world, dataclasses.replace(later, ranks=ended)) == created_ns + 1


def test_removed_directory(tmp_path: Path) -> None:
    """There is nowhere to note it, which is no error."""
    noted = Noted(tmp_path / "job")
    noted.directory.mkdir()
    world, _ = killed()
    noted.turn(world, is_awaited=True)
    for path in noted.directory.iterdir():
        path.unlink()
    noted.directory.rmdir()
    assert noted.turn(world) == 0
