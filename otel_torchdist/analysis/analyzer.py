"""Reads the histories of all ranks once, one after the other, for all parts of an analysis."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final

from otel_torchdist.advice import Advice, advise
from otel_torchdist.clocks.alignment import Alignment
from otel_torchdist.critical_path.analysis import MOST_CALLS, PathFinder
from otel_torchdist.critical_path.model import CriticalPath
from otel_torchdist.history.call_table import CallTable
from otel_torchdist.model.history import RankHistory
from otel_torchdist.parallelism.calls import CallCounter
from otel_torchdist.parallelism.graph import Graph, graph_of
from otel_torchdist.statistics.compute import Observer, statistics_of_calls
from otel_torchdist.statistics.grouping import DEFAULT_PARTS, Part
from otel_torchdist.statistics.model import Statistics


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
