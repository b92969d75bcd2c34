"""Messages between the controlling process, which has not imported torch, and the processes that time calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

WORLD_SIZE: Final = 8


class Variant(Enum):
    """The compared variants of instrumentation; the value is the name in the report."""

    BARE = "bare"
    EMPTY_KERNEL = "empty kernel"
    PYTHON = "Python kernel"
    NATIVE = "native kernel"
    RECORD_FUNCTION = "record_function"
    NAIVE_WITHOUT_EXPORT = "naive, no export"
    NAIVE = "naive"


class Calls(Enum):
    """The kind of calls."""

    USUAL = "usual"
    WITH_A_PEER = "point to point, with another process that answers"
    OF_ALL_SIZES = "of all sizes"
    AFTER_A_LAYER = "each after a layer of a model, forward and backward"


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a measurement.

    Attributes:
        tapes: Directory for our tapes, with a subdirectory for each variant.
        endpoint: OTLP/gRPC endpoint of the sink; '' if no variant needs one.
        library: Folder of the native library; None if no variant needs it.
        backend: Backend of the default group, `fake` or `gloo`.
        world_size: Number of ranks; for gloo one, or two with a peer.
        calls: The kind of calls.
    """

    tapes: Path
    endpoint: str = ""
    library: Path | None = None
    backend: str = "fake"
    world_size: int = WORLD_SIZE
    calls: Calls = Calls.USUAL

    def tapes_of(self, variant: Variant) -> Path:
        """Return the directory for the tape of a variant."""
        return self.tapes / variant.name.lower()


@dataclass(frozen=True, slots=True)
class Kind:
    """The composition of a call.

    Attributes:
        operations: Number of operations as a user counts them; figures are per operation.
        records: Number of recorded operations: a coalesced block is one.
    """

    operations: int = 1
    records: int = 1


@dataclass(frozen=True, slots=True)
class Order:
    """One round of one variant.

    Attributes:
        collective: Name of the call in `collectives`.
        warm_up: Number of calls directly before the timed calls.
        calls: Number of timed calls.
    """

    collective: str
    warm_up: int
    calls: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """An order to check whether a call runs our Python code; the answer is a bool.

    Attributes:
        collective: Name of the call in `collectives`.
        calls: Number of calls before the check, so that all one-time planning is done.
    """

    collective: str
    calls: int = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """The answer to an order, in microseconds per operation.

    Attributes:
        caller: Time of the calling thread, including waits for the GIL.
        process: Processor time of all threads of the process, until everything is exported.
        waited: Time for which the caller waited for a processor; not part of `caller`.
    """

    caller: float
    process: float
    waited: float
