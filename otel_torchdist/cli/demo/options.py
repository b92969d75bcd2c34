"""What the demo was asked for."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from otel_torchdist.cli.demo.faults import Expectation, Fault, expectation

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
        seed: Of the training, and of the step at which something goes wrong.
        fault: What goes wrong.
        threshold_s: Age at which an open operation is stalled.
        block_s: How long a fault lasts that passes, and after which time a job is ended that hangs for good.
        output: File for the spans.
        endpoint: OTLP endpoint for the spans, None for none.
        protocol: How they go there; None to find out.
        plain: Lines instead of a live table.
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

    @property
    def faulty_rank(self) -> int:
        """The rank on which it goes wrong."""
        return min(2, self.ranks - 1)

    @property
    def expected(self) -> Expectation:
        """What must be said about the fault."""
        return expectation(self.fault, self.faulty_rank, self.ranks)
