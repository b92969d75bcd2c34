"""Finds the critical path of steady steps in the histories of all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

from otel_torchdist.analysis.clocks.alignment import Alignment, ClockAligner
from otel_torchdist.analysis.clocks.offsets import ClockOffset
from otel_torchdist.analysis.critical_path.causes import Causes
from otel_torchdist.analysis.critical_path.critical_path import (
    MAX_LONGEST,
    CriticalPath,
    PathKind,
    Piece,
    RankTime,
    StepPath,
)
from otel_torchdist.analysis.critical_path.timelines import Label, PathTimeline
from otel_torchdist.analysis.critical_path.walk import PathMeetings, Walker
from otel_torchdist.analysis.critical_path.whatif import Replay
from otel_torchdist.analysis.parallelism.calls import FIRST_STEADY
from otel_torchdist.analysis.statistics.correlation import labels_of
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.sources.history.call_table import CallTable, RankCalls

MAX_STEADY_RATIO: Final = 2.0
"""Steps longer than this multiple of the median are outliers (checkpoint, evaluation, compilation) and are left out."""
MAX_CALLS: Final = 400_000
"""Upper bound on calls analyzed, over all ranks. The newest are kept."""
_MIN_CALLS: Final = 64
"""Lower bound on the calls kept of each rank."""


class PathFinder:
    """Finds the critical path from the calls of one rank at a time. The caller may drop the calls after adding them."""

    def __init__(self, most_calls: int = MAX_CALLS) -> None:
        """Start without ranks.

        Args:
            most_calls: Approximate upper bound on calls analyzed, over all ranks. The newest steps are kept.
        """
        self._most_calls = most_calls
        self._timelines: list[PathTimeline] = []
        self._aligner = ClockAligner()
        self._world_size = 0

    def add(self, calls: RankCalls) -> None:
        """Add the calls of a rank."""
        self._world_size = max(self._world_size, calls.world_size, calls.rank + 1)
        self._aligner.add(calls)
        timeline = PathTimeline(calls, max(_MIN_CALLS, self._most_calls // self._world_size))
        if timeline.arrived:
            self._timelines.append(timeline)

    def alignment(self) -> Alignment:
        """Return the clock offsets between the ranks added so far."""
        return self._aligner.alignment()

    def path(self, alignment: Alignment | None = None) -> CriticalPath | None:
        """Return the critical path, or None without calls. Call it only once: it aligns the calls in place.

        Args:
            alignment: Result of `alignment()` for these ranks, to avoid computing it again.
        """
        if not self._timelines:
            return None
        timelines = sorted(self._timelines, key=lambda timeline: timeline.rank)
        alignment = alignment or self.alignment()
        if len(alignment.clocks) > 1:
            for timeline in timelines:
                timeline.shift(partial(alignment.offset_ns, timeline.rank))
        return _Analysis(timelines, self._world_size, alignment.clocks).path()


def critical_path_of(histories: Iterable[RankHistory], most_calls: int = MAX_CALLS) -> CriticalPath | None:
    """Find the critical path of histories, one per rank; see `PathFinder`."""
    finder = PathFinder(most_calls)
    table = CallTable()
    for history in histories:
        finder.add(table.columns_of(history))
    return finder.path()


class _Analysis:
    """The analysis of one run's timelines, all on one clock."""

    def __init__(self, timelines: Sequence[PathTimeline], world_size: int, clocks: Sequence[ClockOffset]) -> None:
        self._timelines = timelines
        self._walker = Walker(timelines, PathMeetings(timelines))
        self._world_size = world_size
        self._clocks = clocks

    def path(self) -> CriticalPath:
        """Return the path through the steady steps, or through all calls if there are no steps."""
        ended = self._ends_of(self._steps())
        steady, unsteady = _steady(ended)
        first, last = (steady[0], steady[-1]) if steady else (None, None)
        begins, ends = self._limits(first, last)
        steps = self._paths(steady, begins, ends)
        replay = Replay(self._timelines, self._walker, begins, ends)
        causes = Causes(self._timelines, replay, steps).find() if steady else []
        by_label: Counter[tuple[PathKind, int, Label | None]] = Counter()
        for path in steps:
            for piece in path.pieces:
                by_label[piece.kind, piece.rank, piece.label] += piece.duration_ns
        count = len(steps)
        on_path: Counter[int] = Counter()
        by_kind: Counter[PathKind] = Counter()
        for (kind, rank, _), length_ns in by_label.items():
            by_kind[kind] += length_ns
            if kind is PathKind.COMPUTING:
                on_path[rank] += length_ns
        return CriticalPath(
            world_size=self._world_size,
            ranks=tuple(timeline.rank for timeline in self._timelines),
            has_steps=bool(steady),
            steps=tuple(steps),
            unsteady=len(unsteady),
            longest=tuple(self._longest(unsteady, ended)),
            step_ns=int(median(path.duration_ns for path in steps)),
            by_rank=tuple(
                self._rank_time(rank, begins[rank], ends[rank], count, on_path) for rank in range(len(begins))
            ),
            by_kind={kind: by_kind[kind] // count for kind in PathKind},
            by_label={key: length_ns // count for key, length_ns in by_label.most_common()},
            spent=self._spent(steps),
            causes=tuple(causes),
            clocks=tuple(self._clocks),
            group_names=labels_of(timeline.groups for timeline in self._timelines),
            notes=tuple(self._notes()),
        )

    def _spent_on(self, piece: Piece | None) -> Mapping[TimeKind, int]:
        if piece is None or piece.kind is not PathKind.COMPUTING:
            return {}
        timeline = next(timeline for timeline in self._timelines if timeline.rank == piece.rank)
        return timeline.spent.between(piece.begin_ns, piece.end_ns)

    def _spent(self, steps: Sequence[StepPath]) -> dict[tuple[int, Label | None], dict[TimeKind, int]]:
        """Return the kinds of time in the computing pieces of an average step, by rank and call."""
        by_rank = {timeline.rank: timeline.spent for timeline in self._timelines}
        spent: defaultdict[tuple[int, Label | None], Counter[TimeKind]] = defaultdict(Counter)
        for path in steps:
            for piece in path.pieces:
                if piece.kind is PathKind.COMPUTING:
                    spent[piece.rank, piece.label].update(by_rank[piece.rank].between(piece.begin_ns, piece.end_ns))
        return {key: {kind: ns // len(steps) for kind, ns in kinds.items()} for key, kinds in spent.items()}

    def _steps(self) -> list[int]:
        """Return the newest consecutive steps that every rank recorded completely, ascending."""
        marks = [timeline.marks.keys() for timeline in self._timelines]
        common = set(marks[0]).intersection(*marks[1:])
        first = max(FIRST_STEADY, *(timeline.step[0] + 1 for timeline in self._timelines))
        usable = {step for step in common if step >= first and step - 1 in common}
        steps: list[int] = []
        step = max(usable, default=0)
        while step in usable:
            steps.append(step)
            step -= 1
        return steps[::-1]

    def _ends_of(self, steps: Sequence[int]) -> dict[int, int]:
        """Return when the last rank ended each step, including the step before the first."""
        with_previous = [steps[0] - 1, *steps] if steps else []
        return {step: max(timeline.marks[step] for timeline in self._timelines) for step in with_previous}

    def _paths(self, steps: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> list[StepPath]:
        """Walk the path through consecutive steps and cut it at their ends."""
        last = max(range(len(ends)), key=lambda rank: ends[rank])
        pieces = self._walker.path(last, begins, ends[last])
        if not steps:
            return [StepPath(None, pieces[0].begin_ns if pieces else ends[last], ends[last], tuple(pieces))]
        ended = self._ends_of(steps)
        return list(_cut(pieces, steps, ended))

    def _longest(self, unsteady: Sequence[int], ended: Mapping[int, int]) -> Iterator[StepPath]:
        """Yield the paths through the longest outlier steps, in order."""
        longest = sorted(unsteady, key=lambda step: ended[step - 1] - ended[step])[:MAX_LONGEST]
        for step in sorted(longest):
            for path in self._paths([step], *self._limits(step, step)):
                yield replace(path, longest_spent=self._spent_on(path.longest_piece))

    def _limits(self, first: int | None, last: int | None) -> tuple[list[int], list[int]]:
        """Return the start and end of the analyzed time on each rank: from the first step to the last, or all calls.

        Args:
            first: The first step; None if no steps are recorded.
            last: The last step; None if no steps are recorded.
        """
        if first is None or last is None:
            begins = [timeline.arrived[0] - 1 for timeline in self._timelines]
            return begins, [_last_event_ns(timeline) for timeline in self._timelines]
        begins = [timeline.marks[first - 1] for timeline in self._timelines]
        return begins, [timeline.marks[last] for timeline in self._timelines]

    def _rank_time(self, rank: int, begin_ns: int, end_ns: int, steps: int, on_path: Mapping[int, int]) -> RankTime:
        timeline = self._timelines[rank]
        waits: Counter[int] = Counter()
        blocked_ns, until_ns = 0, begin_ns
        for block in timeline.blocks:
            if block.release_ns <= until_ns:
                continue
            if block.begin_ns >= end_ns:
                break
            from_ns, to_ns = max(block.begin_ns, until_ns), min(block.release_ns, end_ns)
            release = self._walker.release(rank, block)
            if release.last is not None and release.last.rank != rank:
                waits[self._timelines[release.last.rank].rank] += max(0, min(release.arrived_ns, to_ns) - from_ns)
            blocked_ns += max(0, to_ns - from_ns)
            until_ns = max(until_ns, to_ns)
        waiting_ns = waits.total()
        return RankTime(
            rank=timeline.rank,
            host=timeline.host,
            on_path_ns=on_path.get(timeline.rank, 0) // steps,
            computing_ns=(end_ns - begin_ns - blocked_ns) // steps,
            waiting_ns=waiting_ns // steps,
            transfer_ns=(blocked_ns - waiting_ns) // steps,
            waits_for=tuple((other, waited // steps) for other, waited in waits.most_common() if waited >= steps),
        )

    def _notes(self) -> Iterable[str]:
        missing = sorted(set(range(self._world_size)) - {timeline.rank for timeline in self._timelines})
        if missing:
            yield f"no calls of ranks {compress_ranks(missing)} are known: other ranks may have waited for them"
        if any(not timeline.marks for timeline in self._timelines):
            yield "no steps are recorded: all calls count as one step, and causes are not determined"
        unblocked = [timeline.rank for timeline in self._timelines if not timeline.blocks]
        if unblocked:
            yield f"the records of ranks {compress_ranks(unblocked)} do not show when calls blocked them"
        ranks = {timeline.rank for timeline in self._timelines}
        for clock in self._clocks:
            if clock.bound_ns is None and not ranks.isdisjoint(clock.ranks):
                yield f"ranks {compress_ranks(clock.ranks)} shared no operation with others: wall clocks align them"


def _steady(ended: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Return the longest stretch of steps without an outlier, and the outliers.

    Args:
        ended: When each step ended, in order, including the step before the first.
    """
    durations = {step: ended[step] - ended[step - 1] for step in list(ended)[1:]}
    if not durations:
        return [], []
    limit_ns = MAX_STEADY_RATIO * median(durations.values())
    unsteady = [step for step, duration_ns in durations.items() if duration_ns > limit_ns]
    stretches: list[list[int]] = [[]]
    for step, duration_ns in durations.items():
        if duration_ns > limit_ns:
            stretches.append([])
        else:
            stretches[-1].append(step)
    return max(stretches, key=len), unsteady


def _cut(pieces: Sequence[Piece], steps: Sequence[int], ended: Mapping[int, int]) -> Iterator[StepPath]:
    """Cut a path at the ends of steps."""
    place = 0
    for step in steps:
        begin_ns, end_ns = ended[step - 1], ended[step]
        within: list[Piece] = []
        while place < len(pieces) and pieces[place].begin_ns < end_ns:
            piece = pieces[place]
            if piece.end_ns > begin_ns:
                within.append(replace(piece, begin_ns=max(piece.begin_ns, begin_ns), end_ns=min(piece.end_ns, end_ns)))
            if piece.end_ns > end_ns:
                break
            place += 1
        yield StepPath(step, begin_ns, end_ns, tuple(within))


def _last_event_ns(timeline: PathTimeline) -> int:
    release_ns = timeline.blocks[-1].release_ns if timeline.blocks else 0
    return max(release_ns, timeline.arrived[-1])
