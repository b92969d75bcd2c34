"""Finds the causes of long steps by comparing peers.

Peers are ranks that make the same calls in the same pipeline stage. A rank that computes longer than its peers before a
call is a cause. A replay without the cause measures the gain, because another rank may be nearly as late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median_low, stdev
from typing import Final

from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, PathKind, StepPath
from otel_torchdist.analysis.critical_path.timelines import Label, PathTimeline
from otel_torchdist.analysis.critical_path.walk import CallIndex
from otel_torchdist.analysis.critical_path.whatif import Change, Replay
from otel_torchdist.analysis.parallelism.families import Partition
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.names import CallSiteName

MIN_SHARE: Final = 0.01
"""Causes that gain less than this share of a step are left out."""
_MIN_STANDARD_ERRORS: Final = 3.0
"""Least mean excess, in standard errors. By chance alone, one or two of a thousand ranks exceed it."""
_MIN_STEPS: Final = 4
_DOMINANT_SHARE: Final = 0.8
"""If one line has at least this share of a rank's excess, the line is the cause, not the rank."""
_MIN_STAGE_RATIO: Final = 1.1
"""Least ratio of the slowest stage's computing to the mean of the others."""
_MAX_CAUSES: Final = 8
_MAX_TRANSFERS: Final = 3
_MAX_SAMPLED: Final = 64
"""Kinds of time are compared on a sample: fewer than twice this number of calls of a cause, and at most this number of
peers for each call."""

_Line = tuple[str, CallSiteName | None]
"""Operation and call site, by which calls in different groups are compared."""
_LineNumber = int
"""Index of a line. Lines are compared for every call, and integers compare faster."""


@dataclass(frozen=True, slots=True)
class _Excess:
    """The computing time of one rank before the calls of one line, beyond its peers' time.

    Attributes:
        steps: The excess in each step, in nanoseconds.
        expected: The peers' computing time before each call, in nanoseconds.
    """

    label: Label
    steps: tuple[int, ...]
    expected: Mapping[CallIndex, int]


class Causes:
    """Finds the causes in a stretch of steps."""

    def __init__(self, timelines: Sequence[PathTimeline], replay: Replay, paths: Sequence[StepPath]) -> None:
        """Group the calls of all ranks by line and by peers.

        Args:
            timelines: All ranks.
            replay: Their calls in the steps.
            paths: The paths through the steps.
        """
        self._timelines = timelines
        self._replay = replay
        self._paths = paths
        self._steps = len(paths)
        self._min_gain_ns = MIN_SHARE * sum(path.duration_ns for path in paths) / len(paths)
        self._stages = _stages(timelines, replay.calls, len(paths))
        numbers: dict[_Line, _LineNumber] = {}
        self._peer_calls: dict[CallIndex, Sequence[CallIndex]] = {}
        self._lines = [
            [numbers.setdefault(_line(label), len(numbers)) for label in timeline.labels] for timeline in timelines
        ]
        roles: dict[tuple[int, frozenset[_LineNumber]], int] = {}
        # Peers share a stage and call the same lines, not counting lines that few steps reach.
        self._roles = [
            roles.setdefault((stage, lines), len(roles))
            for stage, lines in zip(self._stages, self._usual_lines(), strict=True)
        ]

    def find(self) -> list[Cause]:
        """Return the causes with a notable gain, the greatest first."""
        excesses = self._excesses()
        causes = [*self._slow_lines(excesses), *self._ranks(excesses), *self._stage(), *self._transfers()]
        notable = [cause for cause in causes if cause.gain_ns >= self._min_gain_ns]
        return sorted(notable, key=lambda cause: (-cause.gain_ns, cause.ranks))[:_MAX_CAUSES]

    def _usual_lines(self) -> list[frozenset[_LineNumber]]:
        """Return the lines that each rank calls in at least half of the steps."""
        reached: list[dict[_LineNumber, set[int]]] = [defaultdict(set) for _ in self._timelines]
        for index in self._replay.calls:
            timeline = self._timelines[index.rank]
            reached[index.rank][self._line_of(index)].add(timeline.step[index.call])
        return [frozenset(line for line, steps in lines.items() if 2 * len(steps) >= self._steps) for lines in reached]

    def _gain(self, expected: Mapping[CallIndex, int]) -> int:
        """Return the nanoseconds that an average step would save if computing before some calls took as expected."""
        return self._replay.saved_ns(computing=lambda index, gap_ns: expected.get(index, gap_ns)) // self._steps

    def _excesses(self) -> dict[int, list[_Excess]]:
        """Return the excesses of each rank, by the index of its timeline."""
        matching: dict[tuple[int, _LineNumber, int, int], list[CallIndex]] = defaultdict(list)
        counts: Counter[tuple[int, int, int]] = Counter()
        for index in self._replay.calls:
            timeline = self._timelines[index.rank]
            step, label = timeline.step[index.call], timeline.label[index.call]
            nth = counts[index.rank, step, label]
            counts[index.rank, step, label] += 1
            matching[self._roles[index.rank], self._lines[index.rank][label], step, nth].append(index)
        expected: dict[tuple[int, int], dict[CallIndex, int]] = defaultdict(dict)
        by_step: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self._peer_calls = {index: indices for indices in matching.values() for index in indices}
        for (_, _, step, _), indices in matching.items():
            for index, usual_ns in _usual(indices, self._replay):
                key = (index.rank, self._timelines[index.rank].label[index.call])
                expected[key][index] = usual_ns
                by_step[key][step] += self._replay.computing_ns(index) - usual_ns
        excesses: dict[int, list[_Excess]] = defaultdict(list)
        for (rank, label), steps in by_step.items():
            excesses[rank].append(
                _Excess(self._timelines[rank].labels[label], tuple(steps.values()), expected[rank, label])
            )
        return excesses

    def _slow_lines(self, excesses: Mapping[int, Sequence[_Excess]]) -> Iterator[Cause]:
        """Yield the lines before which one rank computes significantly longer than its peers."""
        suspects = [
            (sum(excess.steps) // self._steps, rank, excess)
            for rank, of_rank in excesses.items()
            for excess in of_rank
            if self._is_significant(excess.steps)
        ]
        for mean_ns, rank, excess in sorted(suspects, key=lambda suspect: (-suspect[0], suspect[1]))[:_MAX_CAUSES]:
            timeline = self._timelines[rank]
            gain_ns = self._gain(excess.expected)
            kinds = self._kinds(excess.expected)
            yield Cause(CauseKind.LINE, (timeline.rank,), timeline.host, excess.label, mean_ns, gain_ns, kinds)

    def _ranks(self, excesses: Mapping[int, Sequence[_Excess]]) -> Iterator[Cause]:
        """Yield the ranks that compute significantly longer over several lines, then the slow nodes."""
        slow: dict[int, int] = {}
        for rank, of_rank in excesses.items():
            totals = [sum(steps) for steps in zip(*_of_every_step(of_rank), strict=True)]
            if self._is_significant(totals):
                slow[rank] = sum(totals) // self._steps
        for rank, mean_ns in sorted(slow.items(), key=lambda item: -item[1])[:_MAX_CAUSES]:
            largest_ns = max(sum(excess.steps) // self._steps for excess in excesses[rank])
            if largest_ns >= _DOMINANT_SHARE * mean_ns:
                continue
            timeline = self._timelines[rank]
            expected = _merge_expected(excesses[rank])
            kinds = self._kinds(expected)
            yield Cause(CauseKind.RANK, (timeline.rank,), timeline.host, None, mean_ns, self._gain(expected), kinds)
        yield from self._nodes(slow, excesses)

    def _kinds(self, indices: Iterable[CallIndex]) -> dict[TimeKind, int]:
        """Return the excess before these calls, by kind of time, in an average step."""
        calls = list(indices)
        sampled = calls[:: max(1, len(calls) // _MAX_SAMPLED)]
        total: Counter[TimeKind] = Counter()
        for index in sampled:
            spent = self._replay.spent(index)
            matching = self._peer_calls[index][:_MAX_SAMPLED]
            peers = [self._replay.spent(other) for other in matching if other.rank != index.rank]
            for kind in TimeKind:
                total[kind] += spent.get(kind, 0) - (median_low(peer.get(kind, 0) for peer in peers) if peers else 0)
        return {kind: excess_ns * len(calls) // len(sampled) // self._steps for kind, excess_ns in total.items()}

    def _nodes(self, slow: Mapping[int, int], excesses: Mapping[int, Sequence[_Excess]]) -> Iterator[Cause]:
        """Yield the nodes on which most ranks are slow; none if most nodes are slow."""
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, timeline in enumerate(self._timelines):
            ranks[timeline.host].append(rank)
        nodes = [host for host, on_host in ranks.items() if _are_slow(on_host, slow)]
        if len(ranks) < 2 or "" in ranks or 2 * len(nodes) > len(ranks):
            return
        for host in nodes:
            slow_ranks = [rank for rank in ranks[host] if rank in slow]
            expected = _merge_expected(excess for rank in slow_ranks for excess in excesses[rank])
            mean_ns = sum(slow[rank] for rank in slow_ranks) // len(slow_ranks)
            numbers = tuple(self._timelines[rank].rank for rank in slow_ranks)
            kinds = {kind: total_ns // len(slow_ranks) for kind, total_ns in self._kinds(expected).items()}
            yield Cause(CauseKind.NODE, numbers, host, None, mean_ns, self._gain(expected), kinds)

    def _stage(self) -> Iterator[Cause]:
        """Yield the slowest pipeline stage, if it computes notably longer than the others before the same lines."""
        typical = self._by_stage()
        if len(typical) < 2:
            return
        slowest = max(typical, key=lambda stage: sum(typical[stage].values()))
        usual = _means([lines for stage, lines in typical.items() if stage != slowest])
        longer = {line: line_ns for line, line_ns in typical[slowest].items() if usual.get(line, line_ns) < line_ns}
        excess_ns = sum(line_ns - usual[line] for line, line_ns in longer.items())
        if excess_ns < (_MIN_STAGE_RATIO - 1) * sum(usual.values()):
            return
        factors = {line: usual[line] / longer[line] for line in longer}
        saved_ns = self._replay.saved_ns(computing=self._with_scaled_computing(slowest, factors))
        ranks = tuple(
            timeline.rank for timeline, stage in zip(self._timelines, self._stages, strict=True) if stage == slowest
        )
        yield Cause(CauseKind.STAGE, ranks, "", None, int(excess_ns) // self._steps, saved_ns // self._steps)

    def _by_stage(self) -> dict[int, dict[_LineNumber, float]]:
        """Return the computing time of each stage's median rank over all steps, by line."""
        totals: Counter[tuple[int, _LineNumber]] = Counter()
        for index in self._replay.calls:
            totals[index.rank, self._line_of(index)] += self._replay.computing_ns(index)
        stages: dict[int, dict[_LineNumber, list[int]]] = defaultdict(lambda: defaultdict(list))
        for (rank, line), total_ns in totals.items():
            if self._stages[rank] >= 0:
                stages[self._stages[rank]][line].append(total_ns)
        return {stage: {line: median_low(ranks) for line, ranks in lines.items()} for stage, lines in stages.items()}

    def _with_scaled_computing(self, stage: int, factors: Mapping[_LineNumber, float]) -> Change:
        def change(index: CallIndex, gap_ns: int) -> int:
            if self._stages[index.rank] != stage:
                return gap_ns
            return int(gap_ns * factors.get(self._line_of(index), 1.0))

        return change

    def _transfers(self) -> Iterator[Cause]:
        """Yield the lines with the longest transfers on the path."""
        lengths: Counter[_Line] = Counter()
        labels: dict[_Line, set[Label]] = defaultdict(set)
        for path in self._paths:
            for piece in path.pieces:
                if piece.kind is PathKind.TRANSFER and piece.label is not None:
                    lengths[_line(piece.label)] += piece.duration_ns
                    labels[_line(piece.label)].add(piece.label)
        for line, length_ns in lengths.most_common(_MAX_TRANSFERS):
            saved_ns = self._replay.saved_ns(transfer=self._without_transfers_of(line))
            label = labels[line].pop() if len(labels[line]) == 1 else Label(line[0], "", line[1])
            yield Cause(CauseKind.TRANSFER, (), "", label, length_ns // self._steps, saved_ns // self._steps)

    def _without_transfers_of(self, line: _Line) -> Change:
        removed = [
            {number for number, label in enumerate(timeline.labels) if _line(label) == line}
            for timeline in self._timelines
        ]

        def change(index: CallIndex, duration_ns: int) -> int:
            return 0 if self._timelines[index.rank].label[index.call] in removed[index.rank] else duration_ns

        return change

    def _line_of(self, index: CallIndex) -> _LineNumber:
        return self._lines[index.rank][self._timelines[index.rank].label[index.call]]

    def _is_significant(self, steps: Sequence[int]) -> bool:
        """Return whether an excess is large enough to report and statistically significant."""
        if len(steps) < _MIN_STEPS or sum(steps) < self._min_gain_ns * self._steps:
            return False
        mean = fmean(steps)
        error = stdev(steps) / len(steps) ** 0.5
        return mean >= _MIN_STANDARD_ERRORS * error


def _line(label: Label) -> _Line:
    return label.operation, label.site


def _usual(indices: Sequence[CallIndex], replay: Replay) -> Iterator[tuple[CallIndex, int]]:
    """Yield each call with the median computing time of the other ranks before their matching calls."""
    if len(indices) < 2:
        return
    gaps = sorted(replay.computing_ns(index) for index in indices)
    for index in indices:
        nth = bisect_left(gaps, replay.computing_ns(index))
        yield index, _median_without(gaps, nth)


def _median_without(ascending: Sequence[int], index: int) -> int:
    """Return the median of all numbers but the one at an index."""
    count = len(ascending) - 1
    low, high = (count - 1) // 2, count // 2
    return (ascending[low + (low >= index)] + ascending[high + (high >= index)]) // 2


def _means(stages: Sequence[Mapping[_LineNumber, float]]) -> dict[_LineNumber, float]:
    """Return the mean of each line over the stages that call it."""
    lines = {line for stage in stages for line in stage}
    return {line: fmean(stage[line] for stage in stages if line in stage) for line in lines}


def _merge_expected(excesses: Iterable[_Excess]) -> dict[CallIndex, int]:
    return {index: usual_ns for excess in excesses for index, usual_ns in excess.expected.items()}


def _of_every_step(excesses: Sequence[_Excess]) -> list[tuple[int, ...]]:
    """Return the excesses of lines that are called in every step."""
    most = max(len(excess.steps) for excess in excesses)
    return [excess.steps for excess in excesses if len(excess.steps) == most]


def _are_slow(ranks: Sequence[int], slow: Mapping[int, int]) -> bool:
    return len(ranks) > 1 and 2 * sum(rank in slow for rank in ranks) > len(ranks)


def _stages(timelines: Sequence[PathTimeline], calls: Iterable[CallIndex], steps: int) -> list[int]:
    """Return the pipeline stage of each rank, by its messages; -1 for ranks without a pipeline.

    A pipeline exchanges messages in each step. Ranks that only send an occasional batch or metric are peers.
    """
    met: dict[tuple[int, int], set[int]] = defaultdict(set)
    for index in calls:
        timeline = timelines[index.rank]
        channel, is_aligned = timeline.channels[timeline.channel[index.call]]
        if is_aligned and channel.is_point_to_point and channel.source >= 0:
            met[channel.source, channel.destination].add(timeline.step[index.call])
    partition = Partition[int]()
    for (source, destination), in_steps in met.items():
        if 2 * len(in_steps) >= steps:
            partition.join(source, destination)
    stages = {rank: stage for ranks in partition.classes() for stage, rank in enumerate(sorted(ranks))}
    return [stages.get(timeline.rank, -1) for timeline in timelines]
