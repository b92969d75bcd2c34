"""Orders for the process that runs DDP's backward, and its answers. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from benchmarks.steps.training import Switch

BUCKETS: Final = 16


class Recorder(Enum):
    """State of torch's flight recorder; the value is the name in the report."""

    OFF = "off"
    ON = "on"


@dataclass(frozen=True, slots=True)
class Turn:
    """An order for consecutive backward passes, beside a computing thread.

    Attributes:
        switch: Whether and how they are recorded.
        warm_up: Number of backward passes before the timed ones.
        backwards: Number of timed backward passes.
    """

    switch: Switch
    warm_up: int
    backwards: int


@dataclass(frozen=True, slots=True)
class Backwards:
    """The answer to a turn.

    Attributes:
        ms: Duration of each timed backward pass, in milliseconds.
        issued: Number of collectives of all backward passes, counted by the backend.
        recorded: Number of collectives on the tape; 0 without a tape.
        has_recorder: Whether torch's flight recorder has entries.
    """

    ms: list[float]
    issued: int
    recorded: int
    has_recorder: bool
