"""What an export leaves out, and why."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator

from otel_torchdist.model.calls import OperationView


class Reason(enum.Enum):
    """Why calls are not in the dumps; the value completes `12 calls are left out: …`."""

    UNKNOWN_OPERATION = "a flight recorder does not know these operations"
    OPEN_CREATION = (
        "a flight recorder does not record that a group is created, so a rank that waits there may look as if it were "
        "missing elsewhere; `otel-torchdist diagnose` reads the tapes, which show it"
    )
    UNALIGNED = "their numbers mean nothing on other ranks, as in groups that existed before recording was switched on"
    ANY_SOURCE = "they are received from any rank, or by a rank that receives from any"
    OVERWRITTEN = "it is not known what other members called in their place: that is overwritten or damaged"


class LeftOut:
    """Counts calls that are left out."""

    def __init__(self) -> None:
        self._counts: dict[Reason, Counter[str]] = {}

    def add(self, reason: Reason, operation: OperationView) -> None:
        """Count a call."""
        self._counts.setdefault(reason, Counter())[operation.name] += 1

    def counts(self) -> Iterator[tuple[Reason, Counter[str]]]:
        """For each reason, how many calls of which operations."""
        for reason in Reason:
            if reason in self._counts:
                yield reason, self._counts[reason]
