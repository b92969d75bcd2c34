"""An opened run: its tables, diagnosis and analyses."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterable, Iterator
from enum import Enum
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.analysis.critical_path.result import PathResult
from otel_torchdist.analysis.parallelism.graph import Graph
from otel_torchdist.analysis.result import (
    ALL_SECTIONS,
    AdviceResult,
    AnalysisResult,
    AnalysisSection,
    Scope,
    analysis_of,
    analysis_result,
)
from otel_torchdist.analysis.statistics.compute import statistics_of
from otel_torchdist.analysis.statistics.grouping import DEFAULT_KEYS, keys_named
from otel_torchdist.analysis.statistics.result import Statistics
from otel_torchdist.config import Config
from otel_torchdist.errors import RunError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.text import readable
from otel_torchdist.runs.diagnosis.chosen import diagnose_chosen
from otel_torchdist.runs.diagnosis.leftovers import diagnose_leftovers
from otel_torchdist.runs.diagnosis.result import DiagnosisResult, result_of, result_of_leftovers
from otel_torchdist.runs.histories import Source, source_of, source_of_run
from otel_torchdist.runs.segments import segments_of_archive, segments_of_run
from otel_torchdist.runs.tables.building import TablesBuilder, arrow_schema
from otel_torchdist.runs.tables.schema import API_TABLES
from otel_torchdist.runs.tables.table import Table, html_table, pyarrow
from otel_torchdist.runs.targets import ChosenRun, Target, chosen_archived_run, chosen_run

if TYPE_CHECKING:
    import altair

_ALL_ROWS: Final = 1 << 62
DEFAULT_BY: Final = ",".join(key.value for key in DEFAULT_KEYS)
"""Properties that distinguish rows of statistics: `operation,group,size`."""


class RunKind(str, Enum):
    """The kind of files that a run is read from."""

    TAPES = "tapes"
    ARCHIVE = "archive"
    DUMPS = "dumps"
    """Dumps of PyTorch's flight recorder, and texts beside them."""
    TRACES = "traces"
    """Traces of PyTorch's profiler, or execution traces."""


class RecordedRun:
    """A run, from tapes (also while it runs), an archive, dumps of PyTorch's flight recorder, or profiler traces.

    Tables and analyses are computed when they are first used, and kept. For newer records of a live run, open it again.

    Attributes:
        kind: The kind of its files.
        warnings: Files that could not be read so far, with reasons.
    """

    def __init__(self, target: Target, kind: RunKind, source: Source) -> None:
        """Use `open_run` instead.

        Args:
            target: The run or files, which are read again for each table and analysis.
            kind: The kind of the files.
            source: Its headline and id.
        """
        self.kind: Final = kind
        self.warnings: list[str] = list(source.warnings)
        self._target = target
        self._headline = source.headline
        self._location = source.location
        self._run_id = source.run_id

    @property
    def run_id(self) -> str | None:
        """Id of the run, 32 hex digits; None for dumps and traces."""
        return self._run_id

    @property
    def headline(self) -> str:
        """The run in a sentence: `run 1234abcd, started 2026-11-21 12:46:05 on node0, 8 of 8 ranks report`."""
        return self._headline

    @property
    def location(self) -> str:
        """Its directory or files."""
        return self._location

    # --- tables -------------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> Table:
        """All calls: operation, group, step, times, sizes, call site. A row for each call of each rank."""
        return self._tables["operations"]

    @property
    def steps(self) -> Table:
        """The ends and durations of steps. A row for each step of each rank; empty if steps are not recorded."""
        return self._tables["steps"]

    @property
    def activities(self) -> Table:
        """Optimizer steps, waits for data, checkpoints, RPC; empty for dumps and traces, which do not record them."""
        return self._tables["activities"]

    @property
    def groups(self) -> Table:
        """The process groups."""
        return self._tables["groups"]

    @property
    def ranks(self) -> Table:
        """The ranks with records: host, state, number of calls, number of lost calls."""
        return self._tables["ranks"]

    @cached_property
    def _tables(self) -> dict[str, Table]:
        arrow, batches = pyarrow(), dict[str, Any]()
        builder = TablesBuilder(arrow, batches.__setitem__, _ALL_ROWS, API_TABLES)
        match self.kind:
            case RunKind.TAPES:
                with self._chosen() as chosen:
                    for segments in segments_of_run(chosen.run, None, self.warnings):
                        builder.add_rank(segments)
            case RunKind.ARCHIVE:
                archived, _ = chosen_archived_run(self._target.paths, self._target.run)
                for segments in segments_of_archive(archived, None, self.warnings):
                    builder.add_rank(segments)
            case RunKind.DUMPS | RunKind.TRACES:
                with self.histories() as histories:
                    for history in histories:
                        builder.add_history(history)
        builder.finish()
        return {
            name: Table(
                batches[name] if name in batches else arrow_schema(arrow, columns).empty_table(),
                {column.name: column.meaning for column in columns},
            )
            for name, columns in API_TABLES.items()
        }

    # --- diagnosis ----------------------------------------------------------------------------------------------------

    def diagnose(self, threshold_s: float | None = None, world_size: int = 0) -> DiagnosisResult:
        """Judge the run as it is now, or as it was at its last moment. The result is not kept.

        Args:
            threshold_s: Seconds after which an open operation counts as stalled. None for the setting
                `OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT`, else 10.
            world_size: Number of ranks, for dumps that do not record it, such as gloo's.

        Returns:
            The struct that `otel-torchdist diagnose --json` prints.

        Raises:
            RunError: The source is an archive or traces, which hold no state of a hang, or it cannot be read.
        """
        rules = StallRules.from_config(Config.from_environment(), threshold_s)
        match self.kind:
            case RunKind.TAPES:
                with self._chosen() as chosen:
                    return result_of(diagnose_chosen(chosen, rules))
            case RunKind.DUMPS:
                leftovers = diagnose_leftovers(self._target.paths, rules, world_size)
                if leftovers.is_empty:
                    raise RunError(f"{self._location}: nothing that can be read", leftovers.notes)
                return result_of_leftovers(leftovers)
            case RunKind.ARCHIVE | RunKind.TRACES:
                raise RunError(f"{self._location}: an archive and traces hold no state of a hang; analyses read them")

    @property
    def findings(self) -> tuple[str, ...]:
        """Findings other than stalls, a sentence each: those that hold at the last moment, then past ones.

        Raises:
            RunError: See `diagnose`.
        """
        result = self.diagnose()
        return (*result.findings, *result.past_findings)

    # --- analyses -----------------------------------------------------------------------------------------------------

    @cached_property
    def analysis(self) -> AnalysisResult:
        """Calls, graph, critical path and advice, read in one pass: the struct that `analyze --json` prints.

        Raises:
            RunError: There are no calls.
        """
        with self._source(needs_times=False) as source:
            untimed = frozenset({AnalysisSection.CALLS, AnalysisSection.PATH})
            sections = ALL_SECTIONS if source.has_times else ALL_SECTIONS - untimed
            analysis = analysis_of(source.histories, Scope(sections))
            if not analysis.known:
                raise RunError(f"{self._location}: {source.empty_message}", source.warnings)
            return analysis_result(analysis, self._run_id, self._location, tuple(source.warnings))

    def statistics(self, by: str | Iterable[str] = DEFAULT_BY, ranks: Collection[int] | None = None) -> Statistics:
        """Return what the calls add up to, with waiting split from transfer.

        Args:
            by: Properties that distinguish rows, as a list or separated by commas: some of `operation`, `group`,
                `size`, `site`, `rank`, `phase`.
            ranks: Ranks whose calls are counted; None for all.

        Raises:
            ValueError: A word in `by` names no property.
            RunError: The source cannot be read, or has no times.
        """
        keys = keys_named(by)
        with self.histories() as histories:
            return statistics_of(histories, keys, ranks)

    def critical_path(self) -> PathResult | None:
        """Return the critical path of an average step; None if no call is known."""
        return self.analysis.path

    def graph(self) -> Graph | None:
        """Return the parallelism graph: axes, and what each is for; None without calls in groups."""
        return self.analysis.graph

    def advice(self) -> tuple[AdviceResult, ...]:
        """Return what is worth looking into, the greatest gain first."""
        return self.analysis.advice or ()

    # --- pictures -----------------------------------------------------------------------------------------------------

    def plot_timeline(
        self, ranks: Collection[int] | None = None, steps: tuple[int, int] | None = None, max_calls: int = 2_000
    ) -> altair.Chart:
        """Draw the calls of ranks over time.

        Args:
            ranks: The ranks; None for all.
            steps: First and last step; None for the newest that fit.
            max_calls: Upper bound on the calls drawn; the newest are kept.

        Raises:
            ImportError: altair is not installed.
            RunError: The source cannot be read, has no times, or no matching call.
        """
        from otel_torchdist.runs.pictures import timeline_chart

        with self.histories() as histories:
            return timeline_chart(histories, ranks, steps, max_calls)

    def plot_steps(self) -> altair.LayerChart:
        """Draw the duration of each step: the median of the ranks, and their range.

        Raises:
            ImportError: altair or pyarrow is not installed.
            RunError: The source records no steps.
        """
        from otel_torchdist.runs.pictures import steps_chart

        return steps_chart(self.steps)

    @contextlib.contextmanager
    def histories(self) -> Generator[Iterator[RankHistory]]:
        """Yield the calls of each rank as objects, read once; for other modules of this package.

        Raises:
            RunError: The source cannot be read, or has no times.
        """
        with self._source(needs_times=True) as source:
            yield source.histories

    def _repr_html_(self) -> str:
        """Return the run's facts as HTML, for notebooks."""
        facts = [
            ("files", f"{self.kind.value}: {self._location}"),
            *(("id", run_id) for run_id in (self._run_id,) if run_id is not None),
            *(("warning", warning) for warning in self.warnings),
        ]
        return f"<p><b>{escape(readable(self._headline))}</b></p>{html_table(('', ''), facts)}"

    def __repr__(self) -> str:
        return f"<RecordedRun: {self._headline}>"

    @contextlib.contextmanager
    def _chosen(self) -> Generator[ChosenRun]:
        chosen = chosen_run(Config.from_environment(), self._target.run, self._target.run_dir)
        try:
            yield chosen
        finally:
            chosen.index.close()

    @contextlib.contextmanager
    def _source(self, needs_times: bool) -> Generator[Source]:
        """Open the histories, which can be read once; keep warnings."""
        with contextlib.ExitStack() as stack:
            if self.kind is RunKind.TAPES:
                source = source_of_run(stack.enter_context(self._chosen()).run)
            else:
                source = source_of(self._target)
            if needs_times and not source.has_times:
                raise RunError(f"{self._location}: execution traces have no times; `graph` and `advice` read them")
            try:
                yield source
            finally:
                self.warnings += [line for line in source.warnings if line not in self.warnings]
