"""What makes steps longer than they need to be, as far as a comparison between peers shows it.

Peers are ranks that make the same calls in the same stage of a pipeline. That one computes longer than the others
before a call is a cause; how much a step would gain without it is replayed, because another rank may be nearly as late.
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
from otel_torchdist.analysis.critical_path.walk import Place
from otel_torchdist.analysis.critical_path.whatif import Change, Replay
from otel_torchdist.analysis.parallelism.families import Partition
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.names import CallSiteName

LEAST_SHARE: Final = 0.01
"""Of a step: less is not worth a line."""
_LEAST_SURE: Final = 3.0
"""Mean excess in standard errors: of a thousand ranks that differ by chance alone, one or two exceed it."""
_LEAST_STEPS: Final = 4
_DOMINANT: Final = 0.8
_UNEQUAL: Final = 1.1
_MOST_CAUSES: Final = 8
_MOST_TRANSFERS: Final = 3
_MOST_SAMPLED: Final = 64
"""Calls of a cause for which it is looked up what the rank did before, or twice that; peers of each are as many."""

_Line = tuple[str, CallSiteName | None]
"""Operation and call site: what ranks of different groups have in common."""
_LineNumber = int
"""Lines are compared for every call, so they are numbered."""


@dataclass(frozen=True, slots=True)
class _Excess:
    """What one rank computes more than its peers before the calls of one line.

    Attributes:
        label: The call.
        steps: The excess in each step.
        expected: By call, what its peers take.
    """

    label: Label
    steps: tuple[int, ...]
    expected: Mapping[Place, int]


class Causes:
    """Finds the causes in a stretch of steps."""

    def __init__(self, timelines: Sequence[PathTimeline], replay: Replay, paths: Sequence[StepPath]) -> None:
        """Look at these.

        Args:
            timelines: All ranks.
            replay: Their calls in the steps.
            paths: The paths through the steps.
        """
        self._timelines = timelines
        self._replay = replay
        self._paths = paths
        self._steps = len(paths)
        self._least_ns = LEAST_SHARE * sum(path.duration_ns for path in paths) / len(paths)
        self._stages = _stages(timelines, replay.calls, len(paths))
        numbers: dict[_Line, _LineNumber] = {}
        self._alike: dict[Place, Sequence[Place]] = {}
        self._lines = [[numbers.setdefault(_line(label), len(numbers)) for label in one.labels] for one in timelines]
        roles: dict[tuple[int, frozenset[_LineNumber]], int] = {}
        # Peers have one stage and the same lines, apart from those that few steps reach.
        self._roles = [
            roles.setdefault((stage, lines), len(roles))
            for stage, lines in zip(self._stages, self._usual_lines(), strict=True)
        ]

    def find(self) -> list[Cause]:
        """The causes whose removal would bring something, the greatest gain first."""
        excesses = self._excesses()
        found = [*self._slow_lines(excesses), *self._ranks(excesses), *self._stage(), *self._transfers()]
        worth = [cause for cause in found if cause.gain_ns >= self._least_ns]
        return sorted(worth, key=lambda cause: (-cause.gain_ns, cause.ranks))[:_MOST_CAUSES]

    def _usual_lines(self) -> list[frozenset[_LineNumber]]:
        """Return the lines that each rank calls in at least half of the steps."""
        reached: list[dict[_LineNumber, set[int]]] = [defaultdict(set) for _ in self._timelines]
        for place in self._replay.calls:
            timeline = self._timelines[place.rank]
            reached[place.rank][self._line_of(place)].add(timeline.step[place.call])
        return [frozenset(line for line, steps in of.items() if 2 * len(steps) >= self._steps) for of in reached]

    def _gain(self, expected: Mapping[Place, int]) -> int:
        return self._replay.saved_ns(computing=lambda place, gap_ns: expected.get(place, gap_ns)) // self._steps

    def _excesses(self) -> dict[int, list[_Excess]]:
        """By index of the rank."""
        alike: dict[tuple[int, _LineNumber, int, int], list[Place]] = defaultdict(list)
        counts: Counter[tuple[int, int, int]] = Counter()
        for place in self._replay.calls:
            timeline = self._timelines[place.rank]
            step, label = timeline.step[place.call], timeline.label[place.call]
            nth = counts[place.rank, step, label]
            counts[place.rank, step, label] += 1
            alike[self._roles[place.rank], self._lines[place.rank][label], step, nth].append(place)
        expected: dict[tuple[int, int], dict[Place, int]] = defaultdict(dict)
        by_step: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        self._alike = {place: places for places in alike.values() for place in places}
        for (_, _, step, _), places in alike.items():
            for place, usual_ns in _usual(places, self._replay):
                key = (place.rank, self._timelines[place.rank].label[place.call])
                expected[key][place] = usual_ns
                by_step[key][step] += self._replay.computing_ns(place) - usual_ns
        found: dict[int, list[_Excess]] = defaultdict(list)
        for (rank, label), steps in by_step.items():
            found[rank].append(
                _Excess(self._timelines[rank].labels[label], tuple(steps.values()), expected[rank, label])
            )
        return found

    def _slow_lines(self, excesses: Mapping[int, Sequence[_Excess]]) -> Iterator[Cause]:
        suspects = [
            (sum(excess.steps) // self._steps, rank, excess)
            for rank, found in excesses.items()
            for excess in found
            if self._is_sure(excess.steps)
        ]
        for mean_ns, rank, excess in sorted(suspects, key=lambda one: (-one[0], one[1]))[:_MOST_CAUSES]:
            timeline = self._timelines[rank]
            gain_ns = self._gain(excess.expected)
            kinds = self._kinds(excess.expected)
            yield Cause(CauseKind.LINE, (timeline.rank,), timeline.host, excess.label, mean_ns, gain_ns, kinds)

    def _ranks(self, excesses: Mapping[int, Sequence[_Excess]]) -> Iterator[Cause]:
        slow: dict[int, int] = {}
        for rank, found in excesses.items():
            totals = [sum(steps) for steps in zip(*_of_equal_length(found), strict=True)]
            if self._is_sure(totals):
                slow[rank] = sum(totals) // self._steps
        for rank, mean_ns in sorted(slow.items(), key=lambda one: -one[1])[:_MOST_CAUSES]:
            largest_ns = max(sum(excess.steps) // self._steps for excess in excesses[rank])
            if largest_ns >= _DOMINANT * mean_ns:
                continue
            timeline = self._timelines[rank]
            expected = _merged(excesses[rank])
            kinds = self._kinds(expected)
            yield Cause(CauseKind.RANK, (timeline.rank,), timeline.host, None, mean_ns, self._gain(expected), kinds)
        yield from self._nodes(slow, excesses)

    def _kinds(self, places: Iterable[Place]) -> dict[TimeKind, int]:
        """What ranks spend more time on than their peers before some of their calls, in an average step."""
        every = list(places)
        sampled = every[:: max(1, len(every) // _MOST_SAMPLED)]
        total: Counter[TimeKind] = Counter()
        for place in sampled:
            own = self._replay.spent(place)
            peers = [self._replay.spent(one) for one in self._alike[place][:_MOST_SAMPLED] if one.rank != place.rank]
            for kind in TimeKind:
                total[kind] += own.get(kind, 0) - (median_low(one.get(kind, 0) for one in peers) if peers else 0)
        return {kind: excess_ns * len(every) // len(sampled) // self._steps for kind, excess_ns in total.items()}

    def _nodes(self, slow: Mapping[int, int], excesses: Mapping[int, Sequence[_Excess]]) -> Iterator[Cause]:
        """Nodes of which most ranks are slow, if most other nodes are not."""
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, timeline in enumerate(self._timelines):
            ranks[timeline.host].append(rank)
        nodes = [host for host, own in ranks.items() if _are_slow(own, slow)]
        if len(ranks) < 2 or "" in ranks or 2 * len(nodes) > len(ranks):
            return
        for host in nodes:
            own = [rank for rank in ranks[host] if rank in slow]
            expected = _merged(excess for rank in own for excess in excesses[rank])
            mean_ns = sum(slow[rank] for rank in own) // len(own)
            numbers = tuple(self._timelines[rank].rank for rank in own)
            kinds = {kind: own_ns // len(own) for kind, own_ns in self._kinds(expected).items()}
            yield Cause(CauseKind.NODE, numbers, host, None, mean_ns, self._gain(expected), kinds)

    def _stage(self) -> Iterator[Cause]:
        """The slowest stage of pipelines, if it computes notably longer than the others, before the same lines."""
        typical = self._by_stage()
        if len(typical) < 2:
            return
        slowest = max(typical, key=lambda stage: sum(typical[stage].values()))
        usual = _means([lines for stage, lines in typical.items() if stage != slowest])
        shared = {line: own for line, own in typical[slowest].items() if usual.get(line, own) < own}
        excess_ns = sum(own - usual[line] for line, own in shared.items())
        if excess_ns < (_UNEQUAL - 1) * sum(usual.values()):
            return
        factors = {line: usual[line] / shared[line] for line in shared}
        saved_ns = self._replay.saved_ns(computing=self._scaled(slowest, factors))
        ranks = tuple(
            timeline.rank for timeline, stage in zip(self._timelines, self._stages, strict=True) if stage == slowest
        )
        yield Cause(CauseKind.STAGE, ranks, "", None, int(excess_ns) // self._steps, saved_ns // self._steps)

    def _by_stage(self) -> dict[int, dict[_LineNumber, float]]:
        """By stage and line how long a typical rank of the stage computes in all steps."""
        own: Counter[tuple[int, _LineNumber]] = Counter()
        for place in self._replay.calls:
            own[place.rank, self._line_of(place)] += self._replay.computing_ns(place)
        ranks: dict[int, dict[_LineNumber, list[int]]] = defaultdict(lambda: defaultdict(list))
        for (rank, line), total_ns in own.items():
            if self._stages[rank] >= 0:
                ranks[self._stages[rank]][line].append(total_ns)
        return {stage: {line: median_low(of) for line, of in lines.items()} for stage, lines in ranks.items()}

    def _scaled(self, stage: int, factors: Mapping[_LineNumber, float]) -> Change:
        def change(place: Place, gap_ns: int) -> int:
            if self._stages[place.rank] != stage:
                return gap_ns
            return int(gap_ns * factors.get(self._line_of(place), 1.0))

        return change

    def _transfers(self) -> Iterator[Cause]:
        """The lines whose transfers take most of the path."""
        lengths: Counter[_Line] = Counter()
        labels: dict[_Line, set[Label]] = defaultdict(set)
        for path in self._paths:
            for piece in path.pieces:
                if piece.kind is PathKind.TRANSFER and piece.label is not None:
                    lengths[_line(piece.label)] += piece.duration_ns
                    labels[_line(piece.label)].add(piece.label)
        for line, length_ns in lengths.most_common(_MOST_TRANSFERS):
            saved_ns = self._replay.saved_ns(transfer=self._without(line))
            label = labels[line].pop() if len(labels[line]) == 1 else Label(line[0], "", line[1])
            yield Cause(CauseKind.TRANSFER, (), "", label, length_ns // self._steps, saved_ns // self._steps)

    def _without(self, line: _Line) -> Change:
        removed = [
            {number for number, label in enumerate(timeline.labels) if _line(label) == line}
            for timeline in self._timelines
        ]

        def change(place: Place, duration_ns: int) -> int:
            return 0 if self._timelines[place.rank].label[place.call] in removed[place.rank] else duration_ns

        return change

    def _line_of(self, place: Place) -> _LineNumber:
        return self._lines[place.rank][self._timelines[place.rank].label[place.call]]

    def _is_sure(self, steps: Sequence[int]) -> bool:
        """Whether an excess is worth a line, and more than chance."""
        if len(steps) < _LEAST_STEPS or sum(steps) < self._least_ns * self._steps:
            return False
        mean = fmean(steps)
        error = stdev(steps) / len(steps) ** 0.5
        return mean >= _LEAST_SURE * error


def _line(label: Label) -> _Line:
    return label.operation, label.site


def _usual(places: Sequence[Place], replay: Replay) -> Iterator[tuple[Place, int]]:
    """For each of the calls the median of what the other ranks computed before theirs."""
    if len(places) < 2:
        return
    gaps = sorted(replay.computing_ns(place) for place in places)
    for place in places:
        own = bisect_left(gaps, replay.computing_ns(place))
        yield place, _median_without(gaps, own)


def _median_without(ascending: Sequence[int], place: int) -> int:
    """The median of numbers of which one is left out."""
    count = len(ascending) - 1
    low, high = (count - 1) // 2, count // 2
    return (ascending[low + (low >= place)] + ascending[high + (high >= place)]) // 2


def _means(stages: Sequence[Mapping[_LineNumber, float]]) -> dict[_LineNumber, float]:
    """For each line the mean of the stages that have it."""
    lines = {line for stage in stages for line in stage}
    return {line: fmean(stage[line] for stage in stages if line in stage) for line in lines}


def _merged(excesses: Iterable[_Excess]) -> dict[Place, int]:
    return {place: usual_ns for excess in excesses for place, usual_ns in excess.expected.items()}


def _of_equal_length(excesses: Sequence[_Excess]) -> list[tuple[int, ...]]:
    """The excesses of what is called in every step."""
    most = max(len(excess.steps) for excess in excesses)
    return [excess.steps for excess in excesses if len(excess.steps) == most]


def _are_slow(ranks: Sequence[int], slow: Mapping[int, int]) -> bool:
    return len(ranks) > 1 and 2 * sum(rank in slow for rank in ranks) > len(ranks)


def _stages(timelines: Sequence[PathTimeline], calls: Iterable[Place], steps: int) -> list[int]:
    """Return the place of each rank in its pipeline, by its messages; -1 for ranks without a pipeline.

    A pipeline exchanges messages in each step. Ranks that send each other a batch or a metric now and then are peers.
    """
    met: dict[tuple[int, int], set[int]] = defaultdict(set)
    for place in calls:
        timeline = timelines[place.rank]
        channel, is_aligned = timeline.channels[timeline.channel[place.call]]
        if is_aligned and channel.is_point_to_point and channel.source >= 0:
            met[channel.source, channel.destination].add(timeline.step[place.call])
    partition = Partition[int]()
    for (source, destination), in_steps in met.items():
        if 2 * len(in_steps) >= steps:
            partition.join(source, destination)
    stages = {rank: stage for ranks in partition.classes() for stage, rank in enumerate(sorted(ranks))}
    return [stages.get(timeline.rank, -1) for timeline in timelines]
