"""What the demo shows, whatever it is shown on."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from otel_torchdist.cli.paths import shown
from otel_torchdist.cli.rank_rows import RankRow
from otel_torchdist.stall.events import VerdictGiven
from otel_torchdist.stall.sentence import sentence


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


@dataclass(frozen=True, slots=True)
class Alarm:
    """A verdict for people to read.

    Attributes:
        text: The verdict as a sentence.
        place: File and line of the first rank that it names, with the code there; '' when it is not known.
    """

    text: str
    place: str


def alarm(event: VerdictGiven) -> Alarm:
    """What to tell of a verdict."""
    verdict = event.verdict
    place = verdict.places.get(verdict.ranks[0]) if verdict.ranks else None
    text = sentence(verdict, (event.world.taken_ns - verdict.since_ns) / 1e9)
    if place is None or place.frame is None:
        return Alarm(text, "")
    file, line = place.frame.file, place.frame.line
    code = linecache.getline(file, line).strip()
    return Alarm(text, f"{shown(file)}:{line}" + (f": {code}" if code else ""))


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
