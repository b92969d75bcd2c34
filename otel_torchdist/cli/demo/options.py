"""The demo's options, and the faults that it can inject with the verdict expected for each."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.finding import FindingKind
from otel_torchdist.model.verdict_kinds import VerdictKind

VERDICT_WITHIN_S: Final = 2.0
"""Seconds after the threshold within which the stall must be named."""


class Protocol(enum.Enum):
    """How spans go to an OTLP endpoint; values as in OTEL_EXPORTER_OTLP_PROTOCOL."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `otel-torchdist demo`.

    Attributes:
        ranks: Ranks that train; at least 2.
        steps: Optimizer steps that each of them takes.
        seed: Seed of the training, and of the step at which something goes wrong.
        fault: What goes wrong.
        threshold_s: Age at which an open operation is stalled.
        block_s: How long a temporary fault lasts, and after how long a permanently hanging job is ended.
        output: File for the spans.
        endpoint: OTLP endpoint for the spans; None for none.
        protocol: How they are sent there; None to derive it from the port.
        plain: Whether to print lines instead of a live table.
        report: File for a report on the run; None for none.
    """

    ranks: int
    steps: int
    seed: int
    fault: Fault
    threshold_s: float
    block_s: float
    output: Path
    endpoint: str | None
    protocol: Protocol | None
    plain: bool
    report: Path | None = None

    @property
    def faulty_rank(self) -> int:
        """The rank on which it goes wrong."""
        return min(2, self.ranks - 1)

    @property
    def expected(self) -> ExpectedVerdict:
        """The verdict expected for the fault."""
        return expectation(self.fault, self.faulty_rank, self.ranks)


class Fault(enum.Enum):
    """What goes wrong; values as in the command lines of the demo and of the training script."""

    LATE = "late"
    KILL = "kill"
    FREEZE = "freeze"
    MISMATCH = "mismatch"
    CIRCULAR = "circular"
    NAN = "nan"
    BITFLIP = "bitflip"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class _Staged:
    """A fault as it is staged.

    Attributes:
        story: What happens, with placeholders for the faulty `rank` and for `length`, how long it lasts.
        verdict: The expected verdict.
        passes: Whether the training continues after it.
    """

    story: str
    verdict: str
    passes: bool


_STAGED: Final[Mapping[Fault, _Staged]] = {
    Fault.LATE: _Staged("the storage of {rank} does not answer for {length}", VerdictKind.ABSENT.value, passes=True),
    Fault.KILL: _Staged("{rank} is killed, as if memory had run out", VerdictKind.DEAD.value, passes=False),
    Fault.FREEZE: _Staged("{rank} is stopped for {length}", VerdictKind.FROZEN.value, passes=True),
    Fault.MISMATCH: _Staged(
        "{rank} calls all_reduce with a tensor of another shape", VerdictKind.MISMATCHED.value, passes=False
    ),
    Fault.CIRCULAR: _Staged(
        "neighbours call all_reduce in pairs, in circular order", VerdictKind.CIRCULAR.value, passes=False
    ),
    Fault.NAN: _Staged(
        "an image that {rank} reads has a value that is not a number", FindingKind.NON_FINITE.value, passes=True
    ),
    Fault.CHECKPOINT: _Staged(
        "a checkpoint is saved, and the storage of {rank} does not answer for {length}",
        VerdictKind.ABSENT.value,
        passes=True,
    ),
    Fault.BITFLIP: _Staged("a bit flips in a result that {rank} has received", FindingKind.DIVERGED.value, passes=True),
}


@dataclass(frozen=True, slots=True)
class ExpectedVerdict:
    """The verdict expected for a fault.

    Attributes:
        verdict: The kind of verdict.
        ranks: The ranks that it must name, ascending.
    """

    verdict: str
    ranks: tuple[int, ...]


def expectation(fault: Fault, faulty_rank: int, ranks: int) -> ExpectedVerdict:
    """Return what is expected for a fault of one rank among `ranks`."""
    # If two disagree, nothing shows which of them is wrong.
    names_all = fault is Fault.CIRCULAR or (fault in (Fault.MISMATCH, Fault.BITFLIP) and ranks == 2)
    return ExpectedVerdict(_STAGED[fault].verdict, tuple(range(ranks)) if names_all else (faulty_rank,))


def story(fault: Fault, rank: str, length: str) -> str:
    """Describe a fault in a clause about `rank` ("rank 2", "a rank"), for `length` ("20 s", "a while") if it passes."""
    return _STAGED[fault].story.format(rank=rank, length=length)


def is_of_values(fault: Fault) -> bool:
    """Whether a fault stalls nothing, and shows in the values of tensors."""
    return fault in (Fault.NAN, Fault.BITFLIP)


def passes(fault: Fault) -> bool:
    """Whether the training continues after a fault."""
    return _STAGED[fault].passes
