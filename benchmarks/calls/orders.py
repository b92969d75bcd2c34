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
    """What is called, and where variants write to.

    Attributes:
        tapes: Directory for our tapes, with one for each variant.
        endpoint: OTLP/gRPC endpoint of the sink; '' where no variant needs one.
        library: Folder of the native library; None where no variant needs it.
        backend: Backend of the default group, `fake` or `gloo`.
        world_size: Its ranks; of gloo one, or two with a peer.
        calls: The kind of calls.
    """

    tapes: Path
    endpoint: str = ""
    library: Path | None = None
    backend: str = "fake"
    world_size: int = WORLD_SIZE
    calls: Calls = Calls.USUAL

    def tapes_of(self, variant: Variant) -> Path:
        """Directory for the tape of a variant."""
        return self.tapes / variant.name.lower()


@dataclass(frozen=True, slots=True)
class Kind:
    """What a call consists of.

    Attributes:
        operations: Operations as a user sees them; figures are for each of them.
        records: Operations that are recorded: a coalesced block is one.
    """

    operations: int = 1
    records: int = 1


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
class Inspection:
    """An order to find out whether a call runs Python code of ours; answered by a bool.

    Attributes:
        collective: The call.
        calls: Calls before, so that what is planned once has been planned.
    """

    collective: str
    calls: int = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """The answer to an order, in microseconds per operation.

    Attributes:
        caller: What the caller loses, waits for the GIL included.
        process: Processor time of all threads of the process, until there is nothing left to export.
        waited: What the caller lost beyond `caller`, because others had the processor.
    """

    caller: float
    process: float
    waited: float
