"""Builds the report from the histories of all ranks. Each history is reduced to columns before the next one is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.analysis.critical_path.critical_path import CriticalPath
from otel_torchdist.analysis.result import Analysis, Analyzer, Scope
from otel_torchdist.analysis.statistics.correlation import labels_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.show.report.columns import Mark, PathPiece, TimeWindow
from otel_torchdist.show.report.figures import RankSteps, keys_for, pieces_in, steps_in
from otel_torchdist.show.report.incidents import LongWait, LongWaits
from otel_torchdist.show.report.lanes import AwaitedArrivals, Lanes
from otel_torchdist.show.report.windows import MAX_BARS, Recorded, WindowSpan, chosen_ranks, spans_of
from otel_torchdist.sources.history.call_table import RankCalls

MAX_MARKS: Final = 400


@dataclass(frozen=True, slots=True)
class ReportChoice:
    """The user's choice for the timeline of a report.

    Attributes:
        ranks: Requested ranks; None for automatic choice.
        steps: Requested steps; None for automatic choice.
    """

    ranks: Collection[int] | None = None
    steps: range | None = None


@dataclass(frozen=True, slots=True)
class ReportBasis:
    """The data of a report, from the histories of all ranks.

    Attributes:
        recorded: All ranks, in columns.
        analysis: The analysis of all calls.
        waits: Long waits that have ended, the longest first.
    """

    recorded: Recorded
    analysis: Analysis
    waits: Sequence[LongWait]


def report_basis(histories: Iterable[RankHistory], threshold_ns: int) -> ReportBasis:
    """Read all histories once.

    Args:
        histories: One for each rank, in any order.
        threshold_ns: Minimum length of a wait that counts as an incident.
    """
    analyzer = Analyzer(Scope())
    steps: dict[int, RankSteps] = {}
    for history in histories:
        analyzer.add(history)
        steps[history.rank] = steps_in(history)
    calls = dict(sorted(analyzer.table.ranks.items()))
    waits = LongWaits(threshold_ns)
    analysis = analyzer.analysis(keys_for(calls.values()), observers=(waits,))
    return ReportBasis(Recorded(calls, steps, analyzer.alignment), analysis, waits.causes())


def windows_of(
    basis: ReportBasis,
    named: Collection[int],
    is_hung: bool,
    choice: ReportChoice,
    read_again: Callable[[Collection[int]], Iterator[RankHistory]],
    format_ns: Callable[[int], str],
) -> list[TimeWindow]:
    """Return the windows of the timeline.

    Args:
        basis: All ranks.
        named: Ranks that verdicts name.
        is_hung: Whether there is a verdict. The window then includes the time after the last step.
        choice: The user's choice.
        read_again: Reads the histories of some ranks again.
        format_ns: Formats nanoseconds since the epoch as local time.
    """
    recorded, long_waits = basis.recorded, basis.waits
    totals = basis.analysis.statistics.ranks
    late = [wait.late.rank for wait in long_waits]
    ranks = chosen_ranks(recorded, [*named, *late], totals, choice.ranks)
    spans = spans_of(recorded, ranks, long_waits, is_hung, choice.steps)
    if not spans or not ranks:
        return []
    waits = AwaitedArrivals(recorded.calls)
    lanes = [
        Lanes(span.from_ns, span.until_ns, recorded.alignment, waits, max(MAX_BARS // len(ranks), 40)) for span in spans
    ]
    names = labels_of(rank.groups for rank in recorded.calls.values())
    for history in read_again(ranks):
        calls = RankCalls(history)
        for window_lanes in lanes:
            window_lanes.add(calls, names)
    marks = [[*_arrival(span, long_waits, recorded), *_marks(span, ranks, recorded)] for span in spans]
    return [
        _window(span, window_lanes, ranks, basis, span_marks, format_ns)
        for span, window_lanes, span_marks in zip(spans, lanes, marks, strict=True)
    ]


def _window(
    span: WindowSpan,
    lanes: Lanes,
    ranks: Sequence[int],
    basis: ReportBasis,
    marks: Sequence[Mark],
    format_ns: Callable[[int], str],
) -> TimeWindow:
    return TimeWindow(
        title=span.title,
        origin=format_ns(span.from_ns),
        length_ns=span.until_ns - span.from_ns,
        lanes=tuple(sorted(lanes.lanes, key=lambda lane: lane.rank)),
        kinds=tuple(lanes.kinds),
        groups=tuple(lanes.groups),
        marks=tuple(marks),
        ranks=len(ranks),
        remarks=tuple(_remarks(lanes, ranks, basis.recorded)),
        incident=span.incident,
        path=tuple(_path(span, basis.analysis.path, ranks, basis.recorded)),
    )


def _path(span: WindowSpan, path: CriticalPath | None, ranks: Sequence[int], recorded: Recorded) -> Iterator[PathPiece]:
    """Yield the pieces of the critical path on shown ranks, if the times of all ranks are comparable."""
    if path is not None and path.has_steps and recorded.alignment.is_bounded and span.incident is None:
        pieces = pieces_in(path, recorded.alignment.wall_offset_ns, span.from_ns, span.until_ns)
        yield from (piece for piece in pieces if piece.rank in ranks)


def _arrival(span: WindowSpan, waits: Sequence[LongWait], recorded: Recorded) -> Iterator[Mark]:
    if span.incident is not None:
        wait = waits[span.incident]
        rank = wait.late.rank
        yield Mark(recorded.wall_ns(rank, wait.until_ns) - span.from_ns, f"rank {rank} arrives", is_late=True)


def _marks(span: WindowSpan, ranks: Sequence[int], recorded: Recorded) -> Iterator[Mark]:
    """Yield the ends of steps on the first rank with any. Other ranks end their steps at nearly the same time."""
    for rank in ranks:
        steps = recorded.steps[rank]
        ended = [(step, recorded.wall_ns(rank, at)) for step, at in zip(steps.steps, steps.ended, strict=True)]
        inside = [(step, at) for step, at in ended if span.from_ns <= at <= span.until_ns]
        if inside:
            yield from (Mark(at - span.from_ns, f"end of step {step}") for step, at in inside[-MAX_MARKS:])
            return


def _remarks(lanes: Lanes, ranks: Sequence[int], recorded: Recorded) -> Iterator[str]:
    if len(ranks) < len(recorded.calls):
        shown = f"{len(ranks):,} of {len(recorded.calls):,} ranks"
        yield f"{shown} are shown: {compress_ranks(ranks)}; --ranks chooses others"
    if len(ranks) > 1 and not recorded.alignment.is_one_clock:
        yield f"clocks: {recorded.alignment.sentence}"
    if lanes.left_out:
        yield f"{lanes.left_out:,} operations are left out: there are too many; --steps and --ranks choose fewer"
