"""Which ranks and calls of a recording become spans.

All of them are too many for one trace: 16 ranks with 2,000 calls each are 32,000 spans, of which Jaeger's answer has
46 MB. What explains a hang are the newest calls of each rank, so they share one trace of at most `MAX_CALLS` calls,
unless the user chooses otherwise. An open call is always among them, however old: verdicts rest on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.history.model import RankHistory
from otel_torchdist.imported.recording import Recording
from otel_torchdist.world.model import OperationView

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
class SelectedRank:
    """A rank and those of its calls that become spans.

    Attributes:
        history: All its calls.
        operations: Those that were chosen, in order.
    """

    history: RankHistory
    operations: tuple[OperationView, ...]

    @property
    def omitted(self) -> int:
        """How many calls were not chosen."""
        return len(self.history.operations) - len(self.operations)


@dataclass(frozen=True, slots=True)
class Selected:
    """What was chosen of a recording.

    Attributes:
        ranks: Ascending.
        last: How many calls of each.
        other_ranks: Ranks with a file that were not chosen, ascending.
    """

    ranks: tuple[SelectedRank, ...]
    last: int
    other_ranks: tuple[int, ...]

    @property
    def calls(self) -> int:
        """How many calls were chosen."""
        return sum(len(rank.operations) for rank in self.ranks)


def select(recording: Recording, wanted: Selection) -> Selected:
    """Choose ranks and their newest calls."""
    chosen = _ranks(recording, wanted.ranks)
    last = wanted.last or max(min(USUAL_LAST, MAX_CALLS // max(len(chosen), 1)), 1)
    histories = [history for history in recording.histories if history.rank in chosen]
    return Selected(
        ranks=tuple(SelectedRank(history, _newest(history, last)) for history in histories),
        last=last,
        other_ranks=tuple(history.rank for history in recording.histories if history.rank not in chosen),
    )


def _ranks(recording: Recording, wanted: frozenset[int] | None) -> frozenset[int]:
    known = [history.rank for history in recording.histories]
    if wanted is not None:
        return wanted.intersection(known)
    return frozenset(_of_interest(recording, known)[:MAX_RANKS])


def _of_interest(recording: Recording, known: Iterable[int]) -> Sequence[int]:
    """Order ranks: those that a verdict names, then those that wait for them, then the others."""
    named = {rank for one in recording.judgements for rank in one.verdict.ranks}
    waiting = {rank for one in recording.judgements for rank in one.verdict.waiting}
    return sorted(known, key=lambda rank: (rank not in named, rank not in waiting, rank))


def _newest(history: RankHistory, last: int) -> tuple[OperationView, ...]:
    """The newest calls and all that are open, each once; none whose time is not known, for it cannot be drawn."""
    timed = {
        operation.record.number: operation
        for operation in history.operations
        if operation.record.entered_ns + history.wall_offset_ns > 0
    }
    in_order = list(timed.values())
    still_open = [operation for operation in in_order[:-last] if operation.record.is_open]
    return (*still_open, *in_order[-last:])
