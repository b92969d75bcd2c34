"""A verdict for people at a terminal: a sentence with its line of code."""

from __future__ import annotations

import contextlib
import linecache
import os
import stat
from dataclasses import dataclass
from typing import Final

from otel_torchdist.cli.output.text import shown
from otel_torchdist.naming import readable
from otel_torchdist.stall.events import VerdictGiven
from otel_torchdist.verdict.wording.sentence import sentence

MAX_SOURCE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Alarm:
    """A verdict for people to read.

    Attributes:
        text: The verdict as a sentence.
        place: File and line of the first rank that it names, with the code there; '' if it is not known.
    """

    text: str
    place: str


def alarm(event: VerdictGiven) -> Alarm:
    """Build the alarm of a verdict."""
    verdict = event.verdict
    place = verdict.places.get(verdict.ranks[0]) if verdict.ranks else None
    text = sentence(verdict, (event.world.taken_ns - verdict.since_ns) / 1e9)
    if place is None or place.frame is None:
        return Alarm(text, "")
    file, line = place.frame.file, place.frame.line
    code = readable(linecache.getline(file, line).strip()) if _may_be_source(file) else ""
    return Alarm(text, f"{shown(file)}:{line}" + (f": {code}" if code else ""))


def _may_be_source(file: str) -> bool:
    """Whether reading the file comes to an end: a tape can name a pipe or a device as the place of a call."""
    with contextlib.suppress(OSError, ValueError):
        facts = os.stat(file)
        return stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_SOURCE_BYTES
    return True  # it may be a relative name, which is searched among the modules
