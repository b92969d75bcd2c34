"""The result of `diagnose`: structs whose encoding is its JSON. Keys are only ever added within a schema.

Times are ISO 8601 in UTC, ages are seconds before `moment.time`; unknown values are null.
"""

from __future__ import annotations

from typing import Final

import msgspec

from otel_torchdist.cli.diagnose.diagnosis import Diagnosis
from otel_torchdist.cli.diagnose.leftovers import JudgedDumps, Leftovers
from otel_torchdist.cli.diagnose.rank_result import RankResult, dumped_rank, recorded_rank
from otel_torchdist.cli.diagnose.texts import TextsResult, texts_result
from otel_torchdist.cli.diagnose.verdict_result import VerdictResult, agents_verdict_result, verdict_result
from otel_torchdist.cli.output.text import alike_in_capture, iso_time
from otel_torchdist.judge.verdict.wording.ends import describe_together
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.node.job.runs.runs import Run

SCHEMA: Final = 2
FLIGHT_RECORDER: Final = "flight recorder"


class RecordedBy(msgspec.Struct, frozen=True):
    """Ranks that are recorded alike.

    Attributes:
        kernel: `native` or `python`; null if that is not known.
        torch: The version of their torch; null if that is not known.
        ranks: The ranks, ascending.
    """

    kernel: str | None
    torch: str | None
    ranks: tuple[int, ...]


class DiagnosedRun(msgspec.Struct, frozen=True):
    """The run.

    Attributes:
        id: 32 hex digits; null if it has none.
        directory: Its job directory, or the paths that were named.
        host: This node; null of dumps.
        begun: When its first rank began.
        world_size: Number of its ranks.
        capture: What records the ranks, an entry for each difference between them.
    """

    id: str | None
    directory: str
    host: str | None
    begun: str | None
    world_size: int | None
    capture: tuple[RecordedBy, ...]


class Coverage(msgspec.Struct, frozen=True):
    """Which ranks are seen here.

    Attributes:
        reporting: Ranks that have a tape or a dump here.
        unknown: Ranks that have none.
    """

    reporting: tuple[int, ...]
    unknown: tuple[int, ...]


class DiagnosedMoment(msgspec.Struct, frozen=True):
    """The moment that a diagnosis is about.

    Attributes:
        time: The moment; null if there are neither tapes nor dumps.
        is_now: False if no rank is alive: then it is the newest sign of life.
        bound: `up to` or `at least` where all ages are known no better, as in dumps of a flight recorder; else null.
    """

    time: str | None
    is_now: bool
    bound: str | None


class EndedTogether(msgspec.Struct, frozen=True):
    """Ranks that something ended at the same moment: none of them is blamed.

    Attributes:
        sentence: Which ranks, and when.
    """

    sentence: str


class DiagnosisSections(msgspec.Struct, frozen=True, omit_defaults=True):
    """What else than tapes and dumps was read.

    Attributes:
        texts: What texts of other tools say; absent if there are none.
    """

    texts: TextsResult | None = None


class DiagnosisResult(msgspec.Struct, frozen=True):
    """A diagnosis of a run, or of what a job that was not recorded has left.

    Attributes:
        schema: 2.
        run: The run.
        coverage: Which ranks are seen here.
        moment: The moment that it is about.
        problem: Whether there is a verdict or a finding, or a rank or one of its helpers has failed or died; the same
            as exit code 1.
        threshold_s: Minimum age at which an open operation counts as stalled.
        verdict: The verdict.
        verdicts: The verdict and, from dumps of a flight recorder, all others of its kind that name other ranks.
        undecided: Why there is no verdict on ranks that have died here: others have no tape on this node.
        ended_together: Ranks that something ended at the same moment.
        ranks: Each rank that reports, ascending.
        stuck_calls: Why remote procedure calls cannot go on, a sentence each.
        findings: What is wrong without a stall (values that are not finite, replicas that differ, failed checkpoints,
            slow ranks), a sentence each, as far as the tapes still show it or this node's agent has written it down.
        past_findings: What the agent has found and no longer held at that moment, a sentence each; no `problem`.
        warnings: Tapes or other files that could not be read, and why.
        helps: Id of the run whose ranks have started the processes of this one.
        helpers: The same for each run of processes that these ranks have started.
        sections: What else was read.
    """

    schema: int
    run: DiagnosedRun
    coverage: Coverage
    moment: DiagnosedMoment
    problem: bool
    threshold_s: float
    verdict: VerdictResult | None
    verdicts: tuple[VerdictResult, ...]
    undecided: str | None
    ended_together: EndedTogether | None
    ranks: tuple[RankResult, ...]
    stuck_calls: tuple[str, ...]
    findings: tuple[str, ...]
    past_findings: tuple[str, ...]
    warnings: tuple[str, ...]
    helps: str | None
    helpers: tuple[DiagnosisResult, ...]
    sections: DiagnosisSections


def result_of(diagnosis: Diagnosis) -> DiagnosisResult:
    """Return the result of a diagnosis."""
    run, verdict = diagnosis.run, _verdict(diagnosis)
    return DiagnosisResult(
        schema=SCHEMA,
        run=DiagnosedRun(
            id=f"{run.run_id:032x}" if run.run_id else None,
            directory=str(run.directory),
            host=run.host,
            begun=iso_time(run.begun_ns),
            world_size=run.world_size,
            capture=_capture(run),
        ),
        coverage=Coverage(tuple(account.view.rank for account in diagnosis.ranks), tuple(diagnosis.found.unseen)),
        moment=DiagnosedMoment(diagnosis.time_of(diagnosis.moment_ns), diagnosis.is_now, None),
        problem=diagnosis.has_problem,
        threshold_s=diagnosis.threshold_s,
        verdict=verdict,
        verdicts=(verdict,) if verdict is not None else (),
        undecided=diagnosis.undecided_text or None,
        ended_together=_together(diagnosis),
        ranks=tuple(recorded_rank(diagnosis, account) for account in diagnosis.ranks),
        stuck_calls=diagnosis.stuck_calls,
        findings=diagnosis.findings,
        past_findings=diagnosis.past_findings,
        warnings=diagnosis.warnings,
        helps=f"{run.helps.run_id:032x}" if run.helps is not None else None,
        helpers=tuple(result_of(helper) for helper in diagnosis.helpers),
        sections=DiagnosisSections(),
    )


def _capture(run: Run) -> tuple[RecordedBy, ...]:
    alike = alike_in_capture(tape.identity for tape in run.tapes)
    return tuple(
        RecordedBy(None if kernel is Kernel.UNKNOWN else kernel.name.lower(), torch or None, tuple(ranks))
        for (kernel, torch), ranks in alike.items()
    )


def _verdict(diagnosis: Diagnosis) -> VerdictResult | None:
    found = diagnosis.found
    if found.of_agents is not None:
        return agents_verdict_result(found.of_agents, tuple(found.named), found.hung_ns)
    if found.verdict is None:
        return None
    return verdict_result(diagnosis, found.verdict, found.age_ns, diagnosis.verdict_text, "tapes", found.hung_ns)


def _together(diagnosis: Diagnosis) -> EndedTogether | None:
    first = diagnosis.found.ended_together
    return EndedTogether(describe_together(first, not diagnosis.found.unseen)) if first is not None else None


def result_of_leftovers(found: Leftovers) -> DiagnosisResult:
    """Return the result of a diagnosis of leftovers, which do not show whether processes live, or on which hosts."""
    dumps = found.dumps
    verdicts = _verdicts_on(dumps) if dumps is not None else ()
    return DiagnosisResult(
        schema=SCHEMA,
        run=DiagnosedRun(
            id=None,
            directory=", ".join(map(str, found.paths)),
            host=None,
            begun=_begun(dumps) if dumps is not None else None,
            world_size=dumps.moment.world_size if dumps is not None else None,
            capture=(),
        ),
        coverage=Coverage(
            tuple(view.rank for view in dumps.ranks) if dumps is not None else (),
            tuple(dumps.moment.unseen) if dumps is not None else (),
        ),
        moment=_moment_of(dumps) if dumps is not None else DiagnosedMoment(None, False, None),
        problem=found.has_problem,
        threshold_s=found.threshold_s,
        verdict=verdicts[0] if verdicts else None,
        verdicts=verdicts,
        undecided=None,
        ended_together=None,
        ranks=_ranks_of(dumps) if dumps is not None else (),
        stuck_calls=(),
        findings=(),
        past_findings=(),
        warnings=found.notes,
        helps=None,
        helpers=(),
        sections=DiagnosisSections(texts_result(found.texts) if found.texts is not None else None),
    )


def _verdicts_on(dumps: JudgedDumps) -> tuple[VerdictResult, ...]:
    return tuple(
        verdict_result(dumps, verdict, dumps.age_ns(verdict), dumps.text_of(verdict), FLIGHT_RECORDER)
        for verdict in dumps.verdicts
    )


def _begun(dumps: JudgedDumps) -> str | None:
    begun_ns = min((one.oldest_ns for one in dumps.dumps if one.oldest_ns), default=0)
    return iso_time(begun_ns) if begun_ns else None


def _moment_of(dumps: JudgedDumps) -> DiagnosedMoment:
    return DiagnosedMoment(dumps.time_of(dumps.moment_ns), False, dumps.bound or None)


def _ranks_of(dumps: JudgedDumps) -> tuple[RankResult, ...]:
    paths = {one.rank: one.dump.path for one in dumps.dumps}
    return tuple(dumped_rank(dumps, view, paths[view.rank]) for view in dumps.ranks)
