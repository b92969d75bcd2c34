"""Orders for the process that runs DDP's backward, and its answers. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from benchmarks.steps.training import Switch

BUCKETS: Final = 16


class Recorder(Enum):
    """Whether torch's own flight recorder is on; the value is the name in the report."""

    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True)
class Turn:
    """A number of backwards, one after the other, beside a computing thread.

    Attributes:
        switch: Whether they are recorded.
        warm_up: Backwards before.
        backwards: Backwards that are timed.
    """

    switch: Switch
    warm_up: int
    backwards: int


@dataclass(frozen=True, slots=True)
class Backwards:
    """The answer to a turn.

    Attributes:
        ms: How long each timed backward took, in milliseconds.
        issued: Collectives of all backwards, as the backend counts them.
        recorded: The same as counted on the tape; 0 where there was none.
        has_recorder: Whether torch's flight recorder has entries.
    """

    ms: list[float]
    issued: int
    recorded: int
    has_recorder: bool
