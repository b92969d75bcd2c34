"""What the processes that train are told and what they answer. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

RANKS = 2


class Parallelism(Enum):
    """How the model is spread over ranks; the value is the name in the report."""

    DDP = "DDP"
    FSDP2 = "FSDP2"


class Switch(Enum):
    """What a block of steps is run with."""

    OFF = "off"
    ON = "on"
    OFF_AGAIN = "off again"


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer and its input.

    Attributes:
        layers: How many.
        width: Of a layer.
        heads: Of its attention.
        sequences: In a batch.
        tokens: In a sequence.
        bucket_mb: What DDP puts into one `all_reduce`.
    """

    layers: int
    width: int
    heads: int
    sequences: int
    tokens: int
    bucket_mb: float


@dataclass(frozen=True, slots=True)
class Block:
    """So many steps one after the other.

    Attributes:
        switch: Whether they are recorded.
        warm_up: Steps before.
        steps: Steps that are timed.
    """

    switch: Switch
    warm_up: int
    steps: int


@dataclass(frozen=True, slots=True)
class Steps:
    """One rank's answer to a block.

    Attributes:
        wall_ms: How long each step took.
        processor_ms: Processor time of the training thread in each step.
        issued: Collectives of all steps, with those of the warm-up, as the backend counts them.
        recorded: The same as counted on the tape; 0 where there was none.
    """

    wall_ms: list[float]
    processor_ms: list[float]
    issued: int
    recorded: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is.

    Attributes:
        rank: Its rank.
        directory: Holds the job's store and, in `tapes`, its tapes.
    """

    rank: int
    directory: Path

    @property
    def store(self) -> Path:
        """The file through which the ranks meet."""
        return self.directory / "store"

    @property
    def tapes(self) -> Path:
        """Directory for tapes."""
        return self.directory / "tapes"
