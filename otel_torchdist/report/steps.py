"""How long steps took."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.operations import StepMark
from otel_torchdist.report.model.figures import Steps
from otel_torchdist.statistics.tally import percentile, sorted_ns

MOST_ENTRIES: Final = 400
"""Points that a chart of the usual width can show."""


class RankSteps:
    """The steps of one rank whose length is known.

    Attributes:
        steps: Their numbers, ascending.
        ended: When each ended, on the rank's own clock.
        lengths: How long each took: the time since the end of the one before, which must be known too.
    """

    __slots__ = ("ended", "lengths", "steps")

    def __init__(self, marks: Iterable[StepMark]) -> None:
        """Take what is needed from marks."""
        self.steps = array("q")
        self.ended = array("q")
        self.lengths = array("q")
        before: StepMark | None = None
        for mark in marks:
            if before is not None and mark.step == before.step + 1 and mark.ended_ns >= before.ended_ns:
                self.steps.append(mark.step)
                self.ended.append(mark.ended_ns)
                self.lengths.append(mark.ended_ns - before.ended_ns)
            before = mark

    def figures(self) -> tuple[int, int | None, int | None]:
        """How many there are, the median length, and the 99th percentile."""
        lengths = sorted_ns(self.lengths)
        if not lengths:
            return 0, None, None
        return len(lengths), percentile(lengths, 0.5), percentile(lengths, 0.99)


def steps_in(history: RankHistory) -> RankSteps:
    """The steps of a history."""
    return RankSteps(history.steps)


def steps_of(ranks: Mapping[int, RankSteps]) -> Steps | None:
    """How long each step took over all ranks; None if no length is known."""
    numbers = sorted({step for rank in ranks.values() for step in rank.steps})
    if not numbers:
        return None
    each = -(-(numbers[-1] - numbers[0] + 1) // MOST_ENTRIES)
    found: dict[int, tuple[array[int], array[int]]] = {}
    for rank, own in ranks.items():
        for step, length in zip(own.steps, own.lengths, strict=True):
            lengths, whose = found.setdefault((step - numbers[0]) // each, (array("q"), array("q")))
            lengths.append(length)
            whose.append(rank)
    entries = sorted(found)
    ordered = [sorted_ns(found[entry][0]) for entry in entries]
    return Steps(
        first=tuple(numbers[0] + entry * each for entry in entries),
        last=tuple(min(numbers[0] + (entry + 1) * each - 1, numbers[-1]) for entry in entries),
        least_ns=tuple(lengths[0] for lengths in ordered),
        median_ns=tuple(percentile(lengths, 0.5) for lengths in ordered),
        most_ns=tuple(lengths[-1] for lengths in ordered),
        slowest=tuple(_slowest(*found[entry]) for entry in entries),
    )


def _slowest(lengths: array[int], ranks: array[int]) -> int:
    return ranks[lengths.index(max(lengths))]
