"""The windows of a report's timeline: their steps and ranks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.analysis.clocks.alignment import Alignment
from otel_torchdist.analysis.parallelism.calls import FIRST_STEADY
from otel_torchdist.analysis.statistics.result import CallTotals
from otel_torchdist.show.report.figures import RankSteps
from otel_torchdist.show.report.incidents import LongWait
from otel_torchdist.sources.history.call_table import RankCalls

MAX_BARS: Final = 24_000
"""Upper bound on the bars in a window. A bar takes about 15 bytes in the page; drawing all takes under a second."""
DEFAULT_STEPS: Final = 12
DEFAULT_RANKS: Final = 32
MAX_RANKS: Final = 256
MAX_INCIDENTS: Final = 3
MIN_MARGIN_NS: Final = 1_000_000
_MARGIN_SHARE: Final = 0.15
"""Margin before and after a long wait, as a share of its length."""


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """A window of time to be shown.

    Attributes:
        title: `steps 236-239`.
        from_ns: Start, since the epoch.
        until_ns: End, since the epoch.
        incident: Index of its long wait; None for steps.
    """

    title: str
    from_ns: int
    until_ns: int
    incident: int | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The records of all ranks.

    Attributes:
        calls: Calls, by ascending rank.
        steps: Steps, by rank.
        alignment: Clock offsets between ranks.
    """

    calls: Mapping[int, RankCalls]
    steps: Mapping[int, RankSteps]
    alignment: Alignment

    def wall_ns(self, rank: int, time_ns: int) -> int:
        """Convert a time of a rank to nanoseconds since the epoch."""
        return self.alignment.epoch_ns(rank, time_ns)

    @property
    def ended_ns(self) -> int:
        """Time of the last record, since the epoch."""
        ends_ns = [self.wall_ns(rank, max(calls.until_ns, calls.last_ns)) for rank, calls in self.calls.items()]
        return max(ends_ns, default=0)


def chosen_ranks(
    recorded: Recorded, named: Iterable[int], totals: Sequence[CallTotals], requested: Collection[int] | None
) -> list[int]:
    """Choose the ranks to show: the requested ranks, or all, or the ranks that matter most and evenly spaced ranks.

    Args:
        recorded: All ranks.
        named: Ranks named by verdicts and incidents.
        totals: Totals of all ranks.
        requested: Requested ranks; None for automatic choice.
    """
    ranks = sorted(recorded.calls)
    if requested is not None:
        return sorted({*requested} & {*ranks})[:MAX_RANKS]
    if len(ranks) <= DEFAULT_RANKS:
        return ranks
    late = sorted(totals, key=lambda rank: -rank.came_last)[: DEFAULT_RANKS // 4]
    wanted = dict.fromkeys([*named, *(rank.rank for rank in late if rank.came_last)])
    chosen = [rank for rank in wanted if rank in recorded.calls][: DEFAULT_RANKS // 2]
    spaced = [ranks[index * len(ranks) // DEFAULT_RANKS] for index in range(DEFAULT_RANKS)]
    chosen += [rank for rank in spaced if rank not in chosen][: DEFAULT_RANKS - len(chosen)]
    return sorted(chosen)


def spans_of(
    recorded: Recorded, ranks: Collection[int], waits: Sequence[LongWait], is_hung: bool, wanted: range | None
) -> list[WindowSpan]:
    """Choose the windows: the requested steps, or the newest steps and a window for each long wait.

    Args:
        recorded: All ranks.
        ranks: The ranks to show.
        waits: Long waits, the longest first.
        is_hung: Whether operations were open at the end.
        wanted: Requested steps; None for the newest steady steps.
    """
    shown = [rank for rank in ranks if len(recorded.steps[rank].steps)]
    if wanted is not None:
        return [span for span in [_steps(recorded, shown, wanted)] if span is not None]
    newest = _newest_steps(recorded, shown)
    spans = [_steps(recorded, shown, newest, until_end=is_hung)] if newest is not None else [_calls(recorded, ranks)]
    spans += [_around(recorded, wait, nth) for nth, wait in enumerate(waits[:MAX_INCIDENTS])]
    return [span for span in spans if span is not None]


def _newest_steps(recorded: Recorded, ranks: Sequence[int]) -> range | None:
    """Return the newest steps whose bars fit into a window; None without steady steps."""
    if not ranks:
        return None
    last = min(recorded.steps[rank].steps[-1] for rank in ranks)
    first = max(FIRST_STEADY, max(recorded.steps[rank].steps[0] for rank in ranks))
    if first > last:
        return None
    calls_per_step = sum(_calls_per_step(recorded.calls[rank], recorded.steps[rank]) for rank in ranks)
    count = max(1, min(DEFAULT_STEPS, int(MAX_BARS / max(calls_per_step, 1))))
    return range(max(first, last - count + 1), last + 1)


def _calls_per_step(calls: RankCalls, steps: RankSteps) -> float:
    """Estimate the number of calls per step. Calls before the first step are included."""
    return len(calls) / len(steps.steps)


def _steps(recorded: Recorded, ranks: Sequence[int], wanted: range, until_end: bool = False) -> WindowSpan | None:
    starts_ns: list[int] = []
    ends_ns: list[int] = []
    for rank in ranks:
        steps = recorded.steps[rank]
        first = bisect_left(steps.steps, wanted.start)
        stop = bisect_left(steps.steps, wanted.stop)
        if first < stop:
            starts_ns.append(recorded.wall_ns(rank, steps.ended[first] - steps.lengths[first]))
            ends_ns.append(recorded.wall_ns(rank, steps.ended[stop - 1]))
    if not starts_ns:
        return None
    listed = f"{wanted.start}-{wanted.stop - 1}" if len(wanted) > 1 else str(wanted.start)
    title = f"step{'s' * (len(wanted) > 1)} {listed}"
    if until_end and recorded.ended_ns > max(ends_ns):
        return WindowSpan(f"{title} and what came after", min(starts_ns), recorded.ended_ns)
    return WindowSpan(title, min(starts_ns), max(ends_ns))


def _calls(recorded: Recorded, ranks: Collection[int]) -> WindowSpan | None:
    """Return a window on about the newest `MAX_BARS` calls, for a run without steps."""
    calls = [recorded.calls[rank] for rank in ranks]
    starts_ns = [recorded.wall_ns(rank.rank, rank.first_ns) for rank in calls if rank.first_ns is not None]
    if not starts_ns:
        return None
    total = sum(map(len, calls))
    first_ns, last_ns = min(starts_ns), recorded.ended_ns
    length_ns = round((last_ns - first_ns) * min(1.0, MAX_BARS / max(total, 1)))
    # A margin for the newest calls: an open call that has just begun would have no length.
    return WindowSpan("the newest calls", last_ns - length_ns, last_ns + max(length_ns // 10, MIN_MARGIN_NS))


def _around(recorded: Recorded, wait: LongWait, incident: int) -> WindowSpan:
    """Return a window on a long wait, with a margin before and after it."""
    margin = round(wait.wait_ns * _MARGIN_SHARE)
    rank = wait.late.rank
    begin_ns, end_ns = recorded.wall_ns(rank, wait.from_ns), recorded.wall_ns(rank, wait.until_ns)
    return WindowSpan(f"rank {rank}, {wait.wait_ns / 1e9:.1f} s late", begin_ns - margin, end_ns + margin, incident)
