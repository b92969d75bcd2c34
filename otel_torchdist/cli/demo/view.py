"""What the demo shows, whatever it is shown on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from otel_torchdist.cli.alarm import Alarm
from otel_torchdist.cli.rank_rows import RankRow


@dataclass(frozen=True, slots=True)
class Picture:
    """The job at one moment.

    Attributes:
        rows: What each rank does, ascending.
        steps: How many steps there will be.
        training: What the script printed last, or ''.
    """

    rows: Sequence[RankRow]
    steps: int
    training: str = ""

    @property
    def step(self) -> int:
        """Steps that all ranks have done."""
        return min((row.step for row in self.rows), default=0)


class View(AbstractContextManager["View"], Protocol):
    """A terminal with a live table, or lines."""

    def say(self, text: str) -> None:
        """Tell what happens, in a line that stays."""
        ...

    def training_says(self, line: str) -> None:
        """Tell what the script has printed."""
        ...

    def sound(self, alarm: Alarm) -> None:
        """Tell of a stall, so that nobody misses it."""
        ...

    def show(self, picture: Picture) -> None:
        """Show how things are; called several times a second."""
        ...
