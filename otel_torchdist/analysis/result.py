"""Analysis of one run: statistics, parallelism graph, critical path and advice, and its result as JSON. Pure.

The histories of all ranks are read once, one after the other. `AnalysisResult` is a struct whose encoding is what
`analyze --json` prints; keys are only ever added within a schema. Numbers are raw, with the unit in the key; unknown
values are null.
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
from otel_torchdist.analysis.critical_path.analysis import MOST_CALLS, PathFinder
from otel_torchdist.analysis.critical_path.critical_path import CriticalPath
from otel_torchdist.analysis.critical_path.result import PathResult, path_result
from otel_torchdist.analysis.parallelism.calls import CallCounter
from otel_torchdist.analysis.parallelism.graph import Graph, graph_of
from otel_torchdist.analysis.statistics.compute import Observer, statistics_of_calls
from otel_torchdist.analysis.statistics.grouping import DEFAULT_PARTS, Part
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
    """What is analysed.

    Attributes:
        sections: The parts of the analysis.
        parts: What distinguishes rows of the statistics.
        ranks: Ranks whose calls the statistics count; None for all.
        most_calls: Upper bound on the calls that the critical path is looked for in, over all ranks.
    """

    sections: Collection[AnalysisSection] = ALL_SECTIONS
    parts: Sequence[Part] = DEFAULT_PARTS
    ranks: Collection[int] | None = None
    most_calls: int = MOST_CALLS

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
    """The results.

    Attributes:
        sections: The parts that were asked for; the others are empty or None.
        world_size: Ranks of the job; 0 if that is not known.
        known: Ranks with records, ascending.
        statistics: Calls and their times.
        graph: The parallelism graph; None without calls in groups.
        path: The critical path; None if no call is known.
        advice: What is worth looking into.
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
    """Reduces one history after the other to columns, each of which may then be forgotten.

    Attributes:
        table: The calls of all ranks, if the statistics are asked for.
    """

    def __init__(self, scope: Scope) -> None:
        """Begin without a rank."""
        self.table: Final = CallTable()
        self._scope = scope
        self._paths = PathFinder(scope.most_calls)
        self._counter = CallCounter()
        self._world_size = 0
        self._known: list[int] = []

    def add(self, history: RankHistory) -> None:
        """Take the history of another rank."""
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
        """The clocks of all ranks, aligned; known once all ranks have been added."""
        return self._paths.alignment()

    def analysis(self, parts: Sequence[Part] | None = None, observers: Sequence[Observer] = ()) -> Analysis:
        """Return the results; only to be called once.

        Args:
            parts: What distinguishes rows of the statistics; None for what the scope says.
            observers: See all meetings of calls as well.
        """
        scope, counted = self._scope, self._counter.counted()
        graph = graph_of(counted) if counted.groups else None
        path = self._paths.path(self.alignment) if scope.needs_path else None
        parts = scope.parts if parts is None else parts
        return Analysis(
            sections=frozenset(scope.sections),
            world_size=self._world_size,
            known=sorted(self._known),
            statistics=statistics_of_calls(self.table.ranks, parts, scope.ranks, observers),
            graph=graph,
            path=path,
            advice=advise(graph, counted, path) if AnalysisSection.ADVICE in scope.sections else (),
        )


def analysis_of(histories: Iterable[RankHistory], scope: Scope) -> Analysis:
    """Analyse the histories of all ranks, one for each."""
    analyzer = Analyzer(scope)
    for history in histories:
        analyzer.add(history)
    return analyzer.analysis()


SCHEMA: Final = 2


class ResultSource(msgspec.Struct, frozen=True):
    """The run, and where its calls were read.

    Attributes:
        run: Id of the run, 32 hex digits; null if it has none.
        place: The directory or files.
        world_size: Ranks of the job; null if that is not known.
        unknown_ranks: Ranks of the job whose calls are not known.
    """

    run: str | None
    place: str
    world_size: int | None
    unknown_ranks: tuple[int, ...]


class AdviceResult(msgspec.Struct, frozen=True):
    """Something worth looking into; figures that do not apply to its topic are null.

    Attributes:
        topic: `slow rank`, `slow node`, `unequal stages`, `exposed communication`, `busy groups across nodes`, `many
            small operations` or `unequal experts`.
        text: What was measured.
        check: How to check it.
        page: The page of the documentation on it.
        ranks: The ranks concerned.
        host: The node concerned.
        role: What the groups concerned are for.
        groups: Number of groups concerned.
        path_share: Share of the critical path.
        gain_ns: Time that a step would be shorter at most.
        step_bytes: Bytes that all members of the groups send in a step.
        step_operations: Operations of one rank in a step.
        operation_bytes: Bytes that a rank contributes to one of them, on average.
        ratio: The largest amount of work by the mean.
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
    """What `analyze --json` prints.

    Attributes:
        schema: 2.
        source: The run, and where its calls were read.
        calls: Calls and their times; null, as the next three, if `--only` asks for another part, or if nothing is
            known.
        graph: The parallelism graph.
        path: The critical path.
        advice: What is worth looking into, what would bring most first.
        warnings: What could not be read, and why.
    """

    schema: int
    source: ResultSource
    calls: Statistics | None
    graph: Graph | None
    path: PathResult | None
    advice: tuple[AdviceResult, ...] | None
    warnings: tuple[str, ...]


def analysis_result(found: Analysis, run: str | None, place: str, warnings: tuple[str, ...]) -> AnalysisResult:
    """Return the result of an analysis.

    Args:
        found: The analysis.
        run: Id of the run, 32 hex digits; None if it has none.
        place: The directory or files that its calls were read from.
        warnings: What could not be read.
    """
    sections, path = found.sections, found.path
    return AnalysisResult(
        schema=SCHEMA,
        source=ResultSource(run, place, found.world_size or None, tuple(found.unknown)),
        calls=found.statistics if AnalysisSection.CALLS in sections else None,
        graph=found.graph if AnalysisSection.GRAPH in sections else None,
        path=path_result(path) if path is not None and AnalysisSection.PATH in sections else None,
        advice=advice_results(found) if AnalysisSection.ADVICE in sections else None,
        warnings=warnings,
    )


def advice_results(found: Analysis) -> tuple[AdviceResult, ...]:
    """Return the advice of an analysis, what would bring most first."""
    names = found.path.group_names if found.path is not None else dict[str, str]()
    return tuple(_advice(one, names) for one in found.advice)


def _advice(one: Advice, names: Mapping[str, str]) -> AdviceResult:
    return AdviceResult(
        topic=one.topic,
        text=finding(one, names),
        check=check(one),
        page=PAGES[one.topic],
        ranks=one.ranks,
        host=one.host or None,
        role=one.role or None,
        groups=one.groups or None,
        path_share=one.share or None,
        gain_ns=one.gain_ns,
        step_bytes=one.step_bytes or None,
        step_operations=one.step_operations or None,
        operation_bytes=one.operation_bytes or None,
        ratio=one.ratio or None,
    )
