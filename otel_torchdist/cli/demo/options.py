"""The demo's options, the faults that it can inject, and the verdict expected for each fault."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.model.reports.verdict_kinds import VerdictKind

VERDICT_WITHIN_S: Final = 2.0
"""Seconds after the threshold within which the expected verdict must come."""


class Protocol(enum.Enum):
    """Protocol for an OTLP endpoint; values as in OTEL_EXPORTER_OTLP_PROTOCOL."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of `otel-torchdist demo`.

    Attributes:
        ranks: Number of ranks, at least 2.
        steps: Number of optimizer steps of each rank.
        seed: Seed of the training, and of the step at which the fault is injected.
        fault: The fault.
        threshold_s: Age at which an open operation is stalled.
        block_s: Duration of a temporary fault. A job that hangs forever is ended after the same time.
        output: File for the spans.
        endpoint: OTLP endpoint for the spans, in addition to `output`; None for none.
        protocol: Protocol for the endpoint; None to derive it from the port.
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
        """The rank on which the fault is injected."""
        return min(2, self.ranks - 1)

    @property
    def expected(self) -> ExpectedVerdict:
        """The verdict expected for the fault."""
        return expectation(self.fault, self.faulty_rank, self.ranks)


class Fault(enum.Enum):
    """A fault; values as in the command lines of the demo and of the training script."""

    LATE = "late"
    KILL = "kill"
    FREEZE = "freeze"
    MISMATCH = "mismatch"
    CIRCULAR = "circular"
    NAN = "nan"
    BITFLIP = "bitflip"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class _FaultDescription:
    """The description and outcome of a fault.

    Attributes:
        story: A clause with placeholders for the faulty `rank` and for `length`, the duration.
        verdict: The expected verdict.
        continues: Whether the training continues after the fault.
    """

    story: str
    verdict: str
    continues: bool


_DESCRIPTIONS: Final[Mapping[Fault, _FaultDescription]] = {
    Fault.LATE: _FaultDescription(
        "the storage of {rank} does not answer for {length}", VerdictKind.ABSENT.value, continues=True
    ),
    Fault.KILL: _FaultDescription(
        "{rank} is killed, as if memory had run out", VerdictKind.DEAD.value, continues=False
    ),
    Fault.FREEZE: _FaultDescription("{rank} is stopped for {length}", VerdictKind.FROZEN.value, continues=True),
    Fault.MISMATCH: _FaultDescription(
        "{rank} calls all_reduce with a tensor of another shape", VerdictKind.MISMATCHED.value, continues=False
    ),
    Fault.CIRCULAR: _FaultDescription(
        "neighbors call all_reduce in pairs, in circular order", VerdictKind.CIRCULAR.value, continues=False
    ),
    Fault.NAN: _FaultDescription(
        "an image that {rank} reads has a value that is not a number",
        FindingKind.NON_FINITE.value,
        continues=True,
    ),
    Fault.CHECKPOINT: _FaultDescription(
        "a checkpoint is saved, and the storage of {rank} does not answer for {length}",
        VerdictKind.ABSENT.value,
        continues=True,
    ),
    Fault.BITFLIP: _FaultDescription(
        "a bit flips in a result that {rank} has received", FindingKind.DIVERGED.value, continues=True
    ),
}


@dataclass(frozen=True, slots=True)
class ExpectedVerdict:
    """The verdict expected for a fault.

    Attributes:
        verdict: The kind of verdict.
        ranks: The named ranks, ascending.
    """

    verdict: str
    ranks: tuple[int, ...]


def expectation(fault: Fault, faulty_rank: int, ranks: int) -> ExpectedVerdict:
    """Return the verdict expected for a fault of one rank among `ranks`."""
    # If two ranks disagree, the records do not show which of them is wrong.
    names_all = fault is Fault.CIRCULAR or (fault in (Fault.MISMATCH, Fault.BITFLIP) and ranks == 2)
    return ExpectedVerdict(_DESCRIPTIONS[fault].verdict, tuple(range(ranks)) if names_all else (faulty_rank,))


def story(fault: Fault, rank: str, length: str) -> str:
    """Describe a fault in a clause about `rank` ("rank 2", "a rank"). `length` ("20 s", "a while") is its duration."""
    return _DESCRIPTIONS[fault].story.format(rank=rank, length=length)


def corrupts_values(fault: Fault) -> bool:
    """Return whether a fault causes no stall, and is visible only in the values of tensors."""
    return fault in (Fault.NAN, Fault.BITFLIP)


def training_continues(fault: Fault) -> bool:
    """Return whether the training continues after a fault."""
    return _DESCRIPTIONS[fault].continues
