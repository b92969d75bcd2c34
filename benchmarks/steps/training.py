"""Orders for the processes that train, and their answers. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

RANKS = 2


class Parallelism(Enum):
    """Kinds of parallelism; the value is the name in the report."""

    DDP = "DDP"
    FSDP2 = "FSDP2"


class Switch(Enum):
    """Variants of recording during a block of steps; the value is the name in the report."""

    OFF = "off"
    PYTHON = "Python kernel"
    NATIVE = "native kernel"
    OFF_AGAIN = "off again"

    @property
    def is_recorded(self) -> bool:
        """Whether recording is on."""
        return self in (Switch.PYTHON, Switch.NATIVE)


def switches_with(library: Path | None) -> list[Switch]:
    """Return all switches; the native kernel only if there is a library."""
    return [switch for switch in Switch if library is not None or switch is not Switch.NATIVE]


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer and its input.

    Attributes:
        layers: Number of layers.
        width: Width of a layer.
        heads: Attention heads.
        sequences: Sequences per batch.
        tokens: Tokens per sequence.
        bucket_mb: Size of DDP's buckets; each is one `all_reduce`.
    """

    layers: int
    width: int
    heads: int
    sequences: int
    tokens: int
    bucket_mb: float


@dataclass(frozen=True, slots=True)
class Block:
    """An order for consecutive steps.

    Attributes:
        switch: Whether and how they are recorded.
        warm_up: Number of steps before the timed steps.
        steps: Number of timed steps.
    """

    switch: Switch
    warm_up: int
    steps: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The answer of one rank to a block.

    Attributes:
        wall_ms: Duration of each step.
        processor_ms: Processor time of the training thread in each step.
        issued: Number of collectives of all steps, including the warm-up, counted by the backend.
        recorded: Number of collectives on the tape; 0 without a tape.
    """

    wall_ms: list[float]
    processor_ms: list[float]
    issued: int
    recorded: int


@dataclass(frozen=True, slots=True)
class Place:
    """A rank and its files.

    Attributes:
        rank: The rank.
        directory: Directory with the job's store and, in `tapes`, its tapes.
        library: Folder of the native library; None if it is not needed.
    """

    rank: int
    directory: Path
    library: Path | None = None

    @property
    def store(self) -> Path:
        """File store of the ranks."""
        return self.directory / "store"

    @property
    def tapes(self) -> Path:
        """Directory for tapes."""
        return self.directory / "tapes"
