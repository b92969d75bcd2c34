"""Orders for ranks whose program is little but small collectives, and their answers. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

RANKS: Final = 3
CORES: Final = 2


class Way(Enum):
    """How the program is run; the value is the name in the report."""

    WITHOUT = "without us"
    PYTHON = "Python kernel"
    NATIVE = "native kernel"
    PYTHON_EXPORTED = "Python kernel, export and scrapes"
    NATIVE_EXPORTED = "native kernel, export and scrapes"
    WITHOUT_AGAIN = "without us, again"

    @property
    def is_recorded(self) -> bool:
        """Whether we are switched on."""
        return self not in (Way.WITHOUT, Way.WITHOUT_AGAIN)

    @property
    def is_native(self) -> bool:
        """Whether it needs the native library."""
        return self in (Way.NATIVE, Way.NATIVE_EXPORTED)

    @property
    def is_exported(self) -> bool:
        """Whether there is an agent, with a receiver of spans and a scraper of `/metrics`."""
        return self in (Way.PYTHON_EXPORTED, Way.NATIVE_EXPORTED)


@dataclass(frozen=True, slots=True)
class Program:
    """What a rank runs: a process group of its own, and a loop in it.

    Attributes:
        store: The file through which the ranks meet.
        settings: Environment variables to switch on with; none without us.
        warm_up: Turns of the loop before.
        turns: Turns that are timed.
    """

    store: Path
    settings: Mapping[str, str]
    warm_up: int
    turns: int


@dataclass(frozen=True, slots=True)
class Loop:
    """One rank's answer.

    Attributes:
        wall_s: How long the timed turns took.
        processor_s: Processor time of all threads of the rank meanwhile.
        operations: Collectives in the timed turns.
        issued: All collectives of the program, as the backend counts them.
    """

    wall_s: float
    processor_s: float
    operations: int
    issued: int
