"""Messages between the process that asks for timings and those that make them. The former has no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

WORLD_SIZE: Final = 8


class Variant(Enum):
    """The ways to instrument a call that are compared; the value is the name in the report."""

    BARE = "bare"
    EMPTY_KERNEL = "empty kernel"
    OURS = "ours"
    RECORD_FUNCTION = "record_function"
    NAIVE_WITHOUT_EXPORT = "naive, no export"
    NAIVE = "naive"


class Calls(Enum):
    """The kind of calls."""

    USUAL = "usual"
    OF_ALL_SIZES = "of all sizes"
    AFTER_A_LAYER = "each after a layer of a model, forward and backward"


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is called, and where variants write to.

    Attributes:
        tapes: Directory for our tape.
        endpoint: OTLP/gRPC endpoint of the sink; '' where no variant needs one.
        world_size: Ranks of the default group.
        calls: The kind of calls.
    """

    tapes: Path
    endpoint: str = ""
    world_size: int = WORLD_SIZE
    calls: Calls = Calls.USUAL


@dataclass(frozen=True, slots=True)
class Order:
    """One round of one variant.

    Attributes:
        collective: The call, by its name in `collectives`.
        warm_up: Calls before, with no break in between.
        calls: Calls that are timed.
    """

    collective: str
    warm_up: int
    calls: int


@dataclass(frozen=True, slots=True)
class Timing:
    """The answer to an order, in microseconds per call.

    Attributes:
        caller: What the caller loses, waits for the GIL included.
        process: Processor time of all threads of the process, until there is nothing left to export.
        waited: What the caller lost beyond `caller`, because others had the processor.
    """

    caller: float
    process: float
    waited: float
