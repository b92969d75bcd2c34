"""Which ranks and calls of a recording become spans.

All of them are too many for one trace: 16 ranks with 2,000 calls each are 32,000 spans, of which Jaeger's answer has
46 MB. What explains a hang are the newest calls of each rank, so they share one trace of at most `MAX_CALLS` calls,
unless the user chooses otherwise. An open call is always among them, however old: verdicts rest on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.imported.findings import Findings
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory

USUAL_LAST: Final = 200
"""Calls of one rank."""
MAX_CALLS: Final = 5_000
"""Calls of all ranks, unless the user states a number for each."""
MAX_RANKS: Final = 64
"""Ranks, unless the user names them; as many as have a bar of their own in the trace of a stall."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What the user wants to see.

    Attributes:
        last: How many of the newest calls of each rank; None for the usual number.
        ranks: Which ranks; None for those of interest.
    """

    last: int | None = None
    ranks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes spans.

    Attributes:
        ranks: The ranks, all of which have a file.
        last: How many calls of each.
    """

    ranks: frozenset[int]
    last: int

    def of(self, history: RankHistory) -> tuple[OperationView, ...]:
        """A rank's newest calls and all that are open, each once; none if it was not chosen.

        Calls whose time is not known are left out, for they cannot be drawn.
        """
        if history.rank not in self.ranks:
            return ()
        timed = {
            operation.record.number: operation
            for operation in history.operations
            if operation.record.entered_ns + history.wall_offset_ns > 0
        }
        in_order = list(timed.values())
        still_open = [operation for operation in in_order[: -self.last] if operation.record.is_open]
        return (*still_open, *in_order[-self.last :])


def choose(findings: Findings, wanted: Selection) -> Choice:
    """Choose ranks, and how many of their calls."""
    known = findings.world.ranks
    ranks = _of_interest(findings)[:MAX_RANKS] if wanted.ranks is None else wanted.ranks.intersection(known)
    last = wanted.last or max(min(USUAL_LAST, MAX_CALLS // max(len(ranks), 1)), 1)
    return Choice(frozenset(ranks), last)


def _of_interest(findings: Findings) -> Sequence[int]:
    """Order ranks: those that a verdict names, then those that wait for them, then the others."""
    named = {rank for one in findings.judgements for rank in one.verdict.ranks}
    waiting = {rank for one in findings.judgements for rank in one.verdict.waiting}
    return sorted(findings.world.ranks, key=lambda rank: (rank not in named, rank not in waiting, rank))
