"""Orders for the processes that train, and their answers. Needs no torch."""

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
    """What is switched on during a block of steps; the value is the name in the report."""

    OFF = "off"
    PYTHON = "Python kernel"
    NATIVE = "native kernel"
    OFF_AGAIN = "off again"

    @property
    def is_recorded(self) -> bool:
        """Whether we are switched on."""
        return self in (Switch.PYTHON, Switch.NATIVE)


def switches_with(library: Path | None) -> list[Switch]:
    """All switches, without the native kernel where there is no library."""
    return [switch for switch in Switch if library is not None or switch is not Switch.NATIVE]


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer and its input.

    Attributes:
        layers: Number of layers.
        width: Width of a layer.
        heads: Heads of its attention.
        sequences: Sequences in a batch.
        tokens: Tokens in a sequence.
        bucket_mb: Size of DDP's buckets, each one `all_reduce`.
    """

    layers: int
    width: int
    heads: int
    sequences: int
    tokens: int
    bucket_mb: float


@dataclass(frozen=True, slots=True)
class Block:
    """A number of steps one after the other.

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
    """A rank and its files.

    Attributes:
        rank: Its rank.
        directory: Holds the job's store and, in `tapes`, its tapes.
        library: Folder of the native library; None where it is not needed.
    """

    rank: int
    directory: Path
    library: Path | None = None

    @property
    def store(self) -> Path:
        """The file through which the ranks meet."""
        return self.directory / "store"

    @property
    def tapes(self) -> Path:
        """Directory for tapes."""
        return self.directory / "tapes"
