"""Builds the report from the histories of all ranks: each is reduced to columns before the next one is taken."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.analysis.critical_path.critical_path import CriticalPath
from otel_torchdist.analysis.result import Analysis, Analyzer, Scope
from otel_torchdist.analysis.statistics.groups import labels_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.naming import compress_ranks
from otel_torchdist.show.report.columns import Mark, PathPiece, TimeWindow
from otel_torchdist.show.report.figures import RankSteps, parts_for, pieces_in, steps_in
from otel_torchdist.show.report.incidents import LongWait, LongWaits
from otel_torchdist.show.report.lanes import AwaitedArrivals, Lanes
from otel_torchdist.show.report.windows import MOST_BARS, Recorded, WindowSpan, chosen_ranks, spans_of
from otel_torchdist.sources.history.call_table import RankCalls

MOST_MARKS: Final = 400


@dataclass(frozen=True, slots=True)
class ReportChoice:
    """What a report shows in its timeline.

    Attributes:
        ranks: The ranks that were asked for; None for a choice of our own.
        steps: The steps that were asked for; None likewise.
    """

    ranks: Collection[int] | None = None
    steps: range | None = None


@dataclass(frozen=True, slots=True)
class ReportBasis:
    """What the histories of all ranks add up to.

    Attributes:
        recorded: All ranks, in columns.
        analysis: What the calls of all ranks add up to.
        waits: Long waits that have ended, the longest first.
    """

    recorded: Recorded
    analysis: Analysis
    waits: Sequence[LongWait]


def findings_of(histories: Iterable[RankHistory], threshold_ns: int) -> ReportBasis:
    """Read all histories once.

    Args:
        histories: One for each rank, in any order.
        threshold_ns: How long a wait is at least that counts as an incident.
    """
    analyzer = Analyzer(Scope())
    steps: dict[int, RankSteps] = {}
    for history in histories:
        analyzer.add(history)
        steps[history.rank] = steps_in(history)
    calls = dict(sorted(analyzer.table.ranks.items()))
    waits = LongWaits(threshold_ns)
    analysis = analyzer.analysis(parts_for(calls.values()), observers=(waits,))
    return ReportBasis(Recorded(calls, steps, analyzer.alignment), analysis, waits.causes())


def windows_of(
    found: ReportBasis,
    named: Collection[int],
    is_hung: bool,
    choice: ReportChoice,
    again: Callable[[Collection[int]], Iterator[RankHistory]],
    shown: Callable[[int], str],
) -> list[TimeWindow]:
    """What the timeline shows.

    Args:
        found: All ranks.
        named: Ranks that verdicts name.
        is_hung: Whether there is a verdict, so that what came after the last step matters.
        choice: What was asked for.
        again: Reads the histories of some ranks once more.
        shown: Formats nanoseconds since the epoch.
    """
    recorded, long_waits = found.recorded, found.waits
    totals = found.analysis.statistics.ranks
    late = [wait.late.rank for wait in long_waits]
    ranks = chosen_ranks(recorded, [*named, *late], totals, choice.ranks)
    spans = spans_of(recorded, ranks, long_waits, is_hung, choice.steps)
    if not spans or not ranks:
        return []
    waits = AwaitedArrivals(recorded.calls)
    lanes = [
        Lanes(span.from_ns, span.until_ns, recorded.alignment, waits, max(MOST_BARS // len(ranks), 40))
        for span in spans
    ]
    names = labels_of(rank.groups for rank in recorded.calls.values())
    for history in again(ranks):
        calls = RankCalls(history)
        for one in lanes:
            one.add(calls, names)
    return [
        _window(span, one, ranks, found, [*_arrival(span, long_waits, recorded), *_marks(span, ranks, recorded)], shown)
        for span, one in zip(spans, lanes, strict=True)
    ]


def _window(
    span: WindowSpan,
    lanes: Lanes,
    ranks: Sequence[int],
    found: ReportBasis,
    marks: Sequence[Mark],
    shown: Callable[[int], str],
) -> TimeWindow:
    return TimeWindow(
        title=span.title,
        origin=shown(span.from_ns),
        length_ns=span.until_ns - span.from_ns,
        lanes=tuple(sorted(lanes.lanes, key=lambda lane: lane.rank)),
        kinds=tuple(lanes.kinds),
        groups=tuple(lanes.groups),
        marks=tuple(marks),
        ranks=len(ranks),
        remarks=tuple(_remarks(lanes, ranks, found.recorded)),
        incident=span.incident,
        path=tuple(_path(span, found.analysis.path, ranks, found.recorded)),
    )


def _path(span: WindowSpan, path: CriticalPath | None, ranks: Sequence[int], recorded: Recorded) -> Iterator[PathPiece]:
    """The critical path of steady steps, if times of all ranks can be compared, as far as its ranks are shown."""
    if path is not None and path.has_steps and recorded.alignment.is_bounded and span.incident is None:
        pieces = pieces_in(path, recorded.alignment.wall_offset_ns, span.from_ns, span.until_ns)
        yield from (piece for piece in pieces if piece.rank in ranks)


def _arrival(span: WindowSpan, waits: Sequence[LongWait], recorded: Recorded) -> Iterator[Mark]:
    if span.incident is not None:
        wait = waits[span.incident]
        rank = wait.late.rank
        yield Mark(recorded.wall_ns(rank, wait.until_ns) - span.from_ns, f"rank {rank} arrives", is_late=True)


def _marks(span: WindowSpan, ranks: Sequence[int], recorded: Recorded) -> Iterator[Mark]:
    """The ends of steps on the first rank that has any; others end theirs at nearly the same time."""
    for rank in ranks:
        steps = recorded.steps[rank]
        ended = [(step, recorded.wall_ns(rank, at)) for step, at in zip(steps.steps, steps.ended, strict=True)]
        inside = [(step, at) for step, at in ended if span.from_ns <= at <= span.until_ns]
        if inside:
            yield from (Mark(at - span.from_ns, f"end of step {step}") for step, at in inside[-MOST_MARKS:])
            return


def _remarks(lanes: Lanes, ranks: Sequence[int], recorded: Recorded) -> Iterator[str]:
    if len(ranks) < len(recorded.calls):
        shown = f"{len(ranks):,} of {len(recorded.calls):,} ranks"
        yield f"{shown} are shown: {compress_ranks(ranks)}; --ranks chooses others"
    if len(ranks) > 1 and not recorded.alignment.is_one_clock:
        yield f"clocks: {recorded.alignment.sentence}"
    if lanes.left_out:
        yield f"{lanes.left_out:,} operations are left out: there are too many; --steps and --ranks choose fewer"
