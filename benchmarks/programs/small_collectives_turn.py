"""Orders for ranks that run mostly small collectives, and their answers. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

RANKS: Final = 3
CORES: Final = 2


class Way(Enum):
    """Variants of the program; the value is the name in the report."""

    WITHOUT = "without us"
    PYTHON = "Python kernel"
    NATIVE = "native kernel"
    PYTHON_EXPORTED = "Python kernel, export and scrapes"
    NATIVE_EXPORTED = "native kernel, export and scrapes"
    WITHOUT_AGAIN = "without us, again"

    @property
    def is_recorded(self) -> bool:
        """Whether recording is on."""
        return self not in (Way.WITHOUT, Way.WITHOUT_AGAIN)

    @property
    def is_native(self) -> bool:
        """Whether the variant needs the native library."""
        return self in (Way.NATIVE, Way.NATIVE_EXPORTED)

    @property
    def is_exported(self) -> bool:
        """Whether there is an agent, with a receiver of spans and a scraper of `/metrics`."""
        return self in (Way.PYTHON_EXPORTED, Way.NATIVE_EXPORTED)


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a rank: a new process group, and a loop in it.

    Attributes:
        store: File store of the ranks.
        settings: Environment variables that turn recording on; empty without recording.
        warm_up: Turns of the loop before the timed turns.
        turns: Number of timed turns.
    """

    store: Path
    settings: Mapping[str, str]
    warm_up: int
    turns: int


@dataclass(frozen=True, slots=True)
class Loop:
    """The answer of one rank.

    Attributes:
        wall_s: Wall time of the timed turns.
        processor_s: Processor time of all threads of the rank during the timed turns.
        operations: Number of collectives in the timed turns.
        issued: Number of all collectives of the program, counted by the backend.
    """

    wall_s: float
    processor_s: float
    operations: int
    issued: int
