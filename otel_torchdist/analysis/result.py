"""The result of `analyze`: a struct whose encoding is its JSON. Keys are only ever added within a schema.

Numbers are raw, with the unit in the key; unknown values are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from otel_torchdist.advice import PAGES, Advice, Topic, check, finding
from otel_torchdist.analysis.analyzer import Analysis, AnalysisSection
from otel_torchdist.critical_path.result import PathResult, path_result
from otel_torchdist.parallelism.graph import Graph
from otel_torchdist.statistics.model import Statistics

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
