"""Analysis of one run: statistics, parallelism graph, critical path and advice, and its result as JSON.

Each rank's history is read once, one after the other. `analyze --json` prints the encoding of `AnalysisResult`. Keys
are only ever added within a schema. Numbers are raw, with the unit in the key; unknown values are null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

import msgspec

from otel_torchdist.analysis.advice import PAGES, Advice, Topic, advise, check, finding
from otel_torchdist.analysis.clocks.alignment import Alignment
from otel_torchdist.analysis.critical_path.analysis import MAX_CALLS, PathFinder
from otel_torchdist.analysis.critical_path.critical_path import CriticalPath
from otel_torchdist.analysis.critical_path.result import PathResult, path_result
from otel_torchdist.analysis.parallelism.calls import CallCounter
from otel_torchdist.analysis.parallelism.graph import Graph, graph_of
from otel_torchdist.analysis.statistics.compute import Observer, statistics_of_calls
from otel_torchdist.analysis.statistics.grouping import DEFAULT_KEYS, GroupingKey
from otel_torchdist.analysis.statistics.result import Statistics
from otel_torchdist.model.history import RankHistory
from otel_torchdist.sources.history.call_table import CallTable


class AnalysisSection(str, Enum):
    """A part of an analysis."""

    CALLS = "calls"
    GRAPH = "graph"
    PATH = "path"
    ADVICE = "advice"


ALL_SECTIONS: Final = frozenset(AnalysisSection)


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of an analysis.

    Attributes:
        sections: The parts of the analysis.
        keys: The keys by which statistics are grouped into rows.
        ranks: Ranks whose calls the statistics count; None for all.
        most_calls: Upper bound on the calls analyzed for the critical path, over all ranks.
    """

    sections: Collection[AnalysisSection] = ALL_SECTIONS
    keys: Sequence[GroupingKey] = DEFAULT_KEYS
    ranks: Collection[int] | None = None
    most_calls: int = MAX_CALLS

    @property
    def needs_graph(self) -> bool:
        """Whether the parallelism graph is needed: advice is derived from it."""
        return not {AnalysisSection.GRAPH, AnalysisSection.ADVICE}.isdisjoint(self.sections)

    @property
    def needs_path(self) -> bool:
        """Whether the critical path is needed: advice is derived from it."""
        return not {AnalysisSection.PATH, AnalysisSection.ADVICE}.isdisjoint(self.sections)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The results of an analysis.

    Attributes:
        sections: The requested parts; the others are empty or None.
        world_size: Number of ranks in the job; 0 if unknown.
        known: Ranks with records, ascending.
        statistics: Calls and their times.
        graph: The parallelism graph; None without calls in groups.
        path: The critical path; None if no call is known.
    """

    sections: Collection[AnalysisSection]
    world_size: int
    known: Sequence[int]
    statistics: Statistics
    graph: Graph | None
    path: CriticalPath | None
    advice: Sequence[Advice]

    @property
    def unknown(self) -> list[int]:
        """Ranks of the job without records, ascending."""
        return sorted({*range(self.world_size)}.difference(self.known))


class Analyzer:
    """Reduces histories to columns, one at a time. The caller may drop a history after adding it.

    Attributes:
        table: The calls of all ranks, if statistics are requested.
    """

    def __init__(self, scope: Scope) -> None:
        """Start without ranks."""
        self.table: Final = CallTable()
        self._scope = scope
        self._paths = PathFinder(scope.most_calls)
        self._counter = CallCounter()
        self._world_size = 0
        self._known: list[int] = []

    def add(self, history: RankHistory) -> None:
        """Add the history of a rank."""
        self._world_size = max(self._world_size, history.world_size)
        self._known.append(history.rank)
        calls = self.table.columns_of(history)
        if self._scope.needs_graph:
            self._counter.add(calls)
        if self._scope.needs_path:
            self._paths.add(calls)
        if AnalysisSection.CALLS in self._scope.sections:
            self.table.keep(calls)

    @cached_property
    def alignment(self) -> Alignment:
        """The aligned clocks of all ranks. Read it only after all ranks have been added."""
        return self._paths.alignment()

    def analysis(self, keys: Sequence[GroupingKey] | None = None, observers: Sequence[Observer] = ()) -> Analysis:
        """Return the results. Call it only once.

        Args:
            keys: The keys by which statistics are grouped into rows; None for the scope's.
            observers: Receive all matched calls as well.
        """
        scope, counted = self._scope, self._counter.counted()
        graph = graph_of(counted) if counted.groups else None
        path = self._paths.path(self.alignment) if scope.needs_path else None
        keys = scope.keys if keys is None else keys
        return Analysis(
            sections=frozenset(scope.sections),
            world_size=self._world_size,
            known=sorted(self._known),
            statistics=statistics_of_calls(self.table.ranks, keys, scope.ranks, observers),
            graph=graph,
            path=path,
            advice=advise(graph, counted, path) if AnalysisSection.ADVICE in scope.sections else (),
        )


def analysis_of(histories: Iterable[RankHistory], scope: Scope) -> Analysis:
    """Analyze the histories of all ranks, one history per rank."""
    analyzer = Analyzer(scope)
    for history in histories:
        analyzer.add(history)
    return analyzer.analysis()


SCHEMA: Final = 2


class ResultSource(msgspec.Struct, frozen=True):
    """The run, and the source of its calls.

    Attributes:
        run: Id of the run, 32 hex digits; null if it has none.
        place: The directory or files.
        world_size: Number of ranks in the job; null if unknown.
        unknown_ranks: Ranks of the job without records.
    """

    run: str | None
    place: str
    world_size: int | None
    unknown_ranks: tuple[int, ...]


class AdviceResult(msgspec.Struct, frozen=True):
    """A piece of advice. Figures that do not apply to its topic are null.

    Attributes:
        topic: `slow rank`, `slow node`, `unequal stages`, `exposed communication`, `busy groups across nodes`, `many
            small operations` or `unequal experts`.
        text: The measurement as a sentence.
        check: How to check the measurement.
        page: The documentation page on the topic.
        ranks: The ranks concerned.
        host: The node concerned.
        role: The role of the groups concerned.
        groups: Number of groups concerned.
        path_share: Share of the critical path.
        gain_ns: Upper bound on the time a step would save.
        step_bytes: Bytes that all members of the groups send in a step.
        step_operations: Operations of one rank in a step.
        operation_bytes: Bytes that a rank contributes to one operation, on average.
        ratio: The largest amount of work divided by the mean.
    """

    topic: Topic
    text: str
    check: str
    page: str
    ranks: tuple[int, ...]
    host: str | None
    role: str | None
    groups: int | None
    path_share: float | None
    gain_ns: int | None
    step_bytes: int | None
    step_operations: int | None
    operation_bytes: int | None
    ratio: float | None


class AnalysisResult(msgspec.Struct, frozen=True):
    """The output of `analyze --json`.

    Attributes:
        schema: 2.
        source: The run, and the source of its calls.
        calls: Calls and their times. Like the next three, null if `--only` selects another part or if nothing is known.
        graph: The parallelism graph.
        path: The critical path.
        advice: Advice, the greatest gain first.
        warnings: Sources that could not be read, with reasons.
    """

    schema: int
    source: ResultSource
    calls: Statistics | None
    graph: Graph | None
    path: PathResult | None
    advice: tuple[AdviceResult, ...] | None
    warnings: tuple[str, ...]


def analysis_result(analysis: Analysis, run: str | None, place: str, warnings: tuple[str, ...]) -> AnalysisResult:
    """Convert an analysis to its JSON result.

    Args:
        analysis: The analysis.
        run: Id of the run, 32 hex digits; None if it has none.
        place: The directory or files that its calls were read from.
        warnings: Sources that could not be read, with reasons.
    """
    sections, path = analysis.sections, analysis.path
    return AnalysisResult(
        schema=SCHEMA,
        source=ResultSource(run, place, analysis.world_size or None, tuple(analysis.unknown)),
        calls=analysis.statistics if AnalysisSection.CALLS in sections else None,
        graph=analysis.graph if AnalysisSection.GRAPH in sections else None,
        path=path_result(path) if path is not None and AnalysisSection.PATH in sections else None,
        advice=advice_results(analysis) if AnalysisSection.ADVICE in sections else None,
        warnings=warnings,
    )


def advice_results(analysis: Analysis) -> tuple[AdviceResult, ...]:
    """Return the advice of an analysis, the greatest gain first."""
    names = analysis.path.group_names if analysis.path is not None else dict[str, str]()
    return tuple(_advice_result(advice, names) for advice in analysis.advice)


def _advice_result(advice: Advice, names: Mapping[str, str]) -> AdviceResult:
    return AdviceResult(
        topic=advice.topic,
        text=finding(advice, names),
        check=check(advice),
        page=PAGES[advice.topic],
        ranks=advice.ranks,
        host=advice.host or None,
        role=advice.role or None,
        groups=advice.groups or None,
        path_share=advice.share or None,
        gain_ns=advice.gain_ns,
        step_bytes=advice.step_bytes or None,
        step_operations=advice.step_operations or None,
        operation_bytes=advice.operation_bytes or None,
        ratio=advice.ratio or None,
    )
