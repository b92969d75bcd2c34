"""The tools that read: runs, diagnoses, analyses and reports. They write nothing and ask no rank."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from otel_torchdist.analysis.result import AnalysisSection, Scope, analysis_of, analysis_result
from otel_torchdist.analysis.statistics.grouping import keys_named
from otel_torchdist.cli.mcp.answers import AnalyzeAnswer, DiagnoseAnswer, ListRunsAnswer, ReportAnswer
from otel_torchdist.cli.mcp.pages import address_of, is_page
from otel_torchdist.cli.mcp.questions import AnalyzeQuestion, DiagnoseQuestion, ListRunsQuestion, ReportQuestion
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.errors import RunError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.text import readable
from otel_torchdist.runs.diagnosis.chosen import diagnose_chosen
from otel_torchdist.runs.diagnosis.leftovers import diagnose_leftovers
from otel_torchdist.runs.diagnosis.rank_result import RankResult
from otel_torchdist.runs.diagnosis.result import DiagnosisResult, result_of, result_of_leftovers
from otel_torchdist.runs.histories import Source, source_of, source_of_run
from otel_torchdist.runs.targets import Target
from otel_torchdist.show.report.reading import read_report
from otel_torchdist.sources.archive.reading import is_archive


def list_runs(targets: RunTargets, question: ListRunsQuestion) -> ListRunsAnswer:
    """List runs, bundles and reports."""
    runs, warnings = targets.runs(question.path)
    is_everything = question.path is None
    return ListRunsAnswer(
        runs=tuple(runs),
        bundles=tuple(targets.bundles() if is_everything else ()),
        reports=tuple(targets.reports() if is_everything else ()),
        directories=tuple(map(str, targets.roots.directories())),
        warnings=tuple(map(readable, warnings)),
    )


def diagnose(targets: RunTargets, question: DiagnoseQuestion) -> DiagnoseAnswer:
    """Judge a run as it is now, or as it was at its last moment."""
    rules = StallRules.from_config(targets.config, question.threshold_s)
    with targets.opened(question.run, question.path) as target:
        result = _diagnosis(targets, target, rules, question.world_size)
    ranks = tuple(_chosen(result, question.ranks))
    kinds = dict.fromkeys(f"verdicts/{verdict.kind}" for verdict in result.verdicts)
    pages = [*filter(is_page, kinds), *(["findings"] if result.findings else [])]
    return DiagnoseAnswer(
        summary=_summary(result),
        runbook=tuple(map(address_of, pages)),
        diagnosis=msgspec.structs.replace(result, ranks=ranks),
        notes=target.notes,
    )


def _diagnosis(targets: RunTargets, target: Target, rules: StallRules, world_size: int) -> DiagnosisResult:
    if any(map(is_archive, target.paths)):
        raise RunError(
            f"{readable(str(target.paths[0]))}: an archive, which lacks the state of processes that a verdict is based "
            "on; `analyze` reads it"
        )
    if not target.paths:
        with targets.chosen(target) as chosen:
            return result_of(diagnose_chosen(chosen, rules, targets.roots.contain))
    leftovers = diagnose_leftovers(target.paths, rules, world_size)
    if leftovers.is_empty:
        raise RunError(f"{', '.join(map(str, leftovers.paths))}: nothing that can be read", leftovers.notes)
    return result_of_leftovers(leftovers)


def _summary(result: DiagnosisResult) -> str:
    """Return the verdict and everything else that is wrong, or say that nothing is."""
    sentences = [
        *(verdict.sentence for verdict in result.verdicts),
        *([result.undecided] if result.undecided else []),
        *([result.ended_together.sentence] if result.ended_together is not None else []),
        *result.stuck_calls,
        *result.findings,
    ]
    if sentences:
        return "; ".join(sentences)
    if result.sections.texts is not None:
        return "no verdict from records; diagnosis.sections.texts has what logs and stacks show"
    if result.problem:
        return "a rank has failed or died, and no other rank was held up; diagnosis.ranks says which"
    return "no verdict and no finding: no rank holds the others up"


def _chosen(result: DiagnosisResult, wanted: Collection[int] | None) -> Iterator[RankResult]:
    """Yield the requested ranks, or all, the most important first.

    Raises:
        RunError: A requested rank has no records here.
    """
    if wanted is not None:
        known = {rank.rank: rank for rank in result.ranks}
        missing = sorted({*wanted}.difference(known))
        if missing:
            raise RunError(f"rank {missing[0]} has no tape or dump here; see `diagnosis.coverage` without `ranks`")
        yield from (known[rank] for rank in sorted({*wanted}))
        return
    named = {rank for verdict in result.verdicts for rank in verdict.ranks}
    yield from sorted(result.ranks, key=lambda rank: (rank.rank not in named, rank.life not in ("failed", "dead")))


def analyze(targets: RunTargets, question: AnalyzeQuestion) -> AnalyzeAnswer:
    """Analyze the calls of a run."""
    section = AnalysisSection(question.section)
    ranks = frozenset(question.ranks) if question.ranks is not None else None
    scope = Scope(frozenset({section}), keys_named(question.by), ranks)
    with targets.opened(question.run, question.path) as target:
        if target.paths:
            return _analyzed(source_of(target), section, scope, target.notes)
        with targets.chosen(target) as chosen:
            source = source_of_run(chosen.run)
            source.warnings.extend(chosen.unreadable)
            return _analyzed(source, section, scope, target.notes)


def _analyzed(source: Source, section: AnalysisSection, scope: Scope, notes: tuple[str, ...]) -> AnalyzeAnswer:
    if section in (AnalysisSection.CALLS, AnalysisSection.PATH) and not source.has_times:
        raise RunError(f"{source.location}: execution traces have no times; sections `graph` and `advice` read them")
    analysis = analysis_of(source.histories, scope)
    if not analysis.known:
        raise RunError(f"{source.location}: {source.empty_message}", source.warnings)
    result = analysis_result(analysis, source.run_id, source.location, tuple(source.warnings))
    return AnalyzeAnswer(readable(source.headline), result, notes)


def report(targets: RunTargets, question: ReportQuestion) -> ReportAnswer:
    """Read the conclusions of a report."""
    return ReportAnswer(read_report(targets.roots.checked(question.path)))
