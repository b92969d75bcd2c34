"""The result of `diagnose`: structs that are encoded as JSON. Within a schema, keys are only ever added.

Times are ISO 8601 in UTC, ages are seconds before `moment.time`; unknown values are null.
"""

from __future__ import annotations

from typing import Final

import msgspec

from otel_torchdist.judge.verdict.wording.ends import describe_together
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.model.times import iso_time
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis
from otel_torchdist.runs.diagnosis.leftovers import JudgedDumps, Leftovers
from otel_torchdist.runs.diagnosis.rank_result import RankResult, dumped_rank, recorded_rank
from otel_torchdist.runs.diagnosis.texts import TextsResult, texts_result
from otel_torchdist.runs.diagnosis.verdict_result import VerdictResult, agents_verdict_result, verdict_result
from otel_torchdist.tape.identity import ranks_by_recorder

SCHEMA: Final = 2
FLIGHT_RECORDER: Final = "flight recorder"


class RecordedBy(msgspec.Struct, frozen=True):
    """Ranks with the same recorder.

    Attributes:
        kernel: `native` or `python`; null if unknown.
        torch: The version of their torch; null if unknown.
        ranks: The ranks, ascending.
    """

    kernel: str | None
    torch: str | None
    ranks: tuple[int, ...]


class DiagnosedRun(msgspec.Struct, frozen=True):
    """The run.

    Attributes:
        id: 32 hex digits; null if it has none.
        directory: Its job directory, its bundle, or the named paths.
        host: This node; null for dumps.
        begun: Start of its first rank.
        world_size: Number of its ranks.
        capture: The recorders of its ranks, one entry for each distinct recorder.
    """

    id: str | None
    directory: str
    host: str | None
    begun: str | None
    world_size: int | None
    capture: tuple[RecordedBy, ...]


class Coverage(msgspec.Struct, frozen=True):
    """The ranks covered by a diagnosis.

    Attributes:
        reporting: Ranks that have a tape or a dump here.
        unknown: All other ranks of the run.
    """

    reporting: tuple[int, ...]
    unknown: tuple[int, ...]


class DiagnosedMoment(msgspec.Struct, frozen=True):
    """The moment of a diagnosis.

    Attributes:
        time: The moment; null if there are neither tapes nor dumps.
        is_now: False if no rank is alive: then the moment is the newest sign of life.
        bound: `up to` or `at least` if ages are only bounds, as in dumps of a flight recorder; else null.
    """

    time: str | None
    is_now: bool
    bound: str | None


class EndedTogether(msgspec.Struct, frozen=True):
    """Ranks that were ended from outside at the same moment: none of them is blamed.

    Attributes:
        sentence: The ranks and the time.
    """

    sentence: str


class DiagnosisSections(msgspec.Struct, frozen=True, omit_defaults=True):
    """Sources other than tapes and dumps.

    Attributes:
        texts: Texts of other tools; absent if there are none.
    """

    texts: TextsResult | None = None


class DiagnosisResult(msgspec.Struct, frozen=True):
    """A diagnosis of a run, or of the dumps and texts of a job that was not recorded.

    Attributes:
        schema: 2.
        run: The run.
        coverage: The ranks covered.
        moment: The moment of the diagnosis.
        problem: Whether there is a verdict or a finding, or a rank or one of its helpers has failed or died; the same
            as exit code 1.
        threshold_s: Minimum age at which an open operation counts as stalled.
        verdict: The verdict.
        verdicts: The verdict and, from dumps of a flight recorder, all others of its kind that name other ranks.
        undecided: Reason for the missing verdict on ranks that have died here: others have no tape on this node.
        ended_together: Ranks that were ended from outside at the same moment.
        ranks: Each rank that reports, ascending.
        stuck_calls: Reasons why remote procedure calls cannot go on, a sentence each.
        findings: Findings other than stalls (values that are not finite, replicas that differ, failed checkpoints,
            slow ranks), a sentence each, from the tapes or the notes of this node's agent.
        past_findings: Findings of the agent that no longer held at that moment, a sentence each; they do not set
            `problem`.
        warnings: Tapes or other files that could not be read, with reasons.
        helps: Id of the run whose ranks have started the processes of this one.
        helpers: The same for each run of processes that these ranks have started.
        sections: Other sources.
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
            directory=run.place,
            host=run.host,
            begun=iso_time(run.begun_ns),
            world_size=run.world_size,
            capture=_capture(run),
        ),
        coverage=Coverage(tuple(account.view.rank for account in diagnosis.ranks), tuple(diagnosis.post_mortem.unseen)),
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
    by_recorder = ranks_by_recorder(tape.identity for tape in run.tapes)
    return tuple(
        RecordedBy(None if kernel is Kernel.UNKNOWN else kernel.name.lower(), torch or None, tuple(ranks))
        for (kernel, torch), ranks in by_recorder.items()
    )


def _verdict(diagnosis: Diagnosis) -> VerdictResult | None:
    post_mortem = diagnosis.post_mortem
    if post_mortem.of_agents is not None:
        return agents_verdict_result(post_mortem.of_agents, tuple(post_mortem.named), post_mortem.hung_ns)
    if post_mortem.verdict is None:
        return None
    text, hung_ns = diagnosis.verdict_text, post_mortem.hung_ns
    return verdict_result(diagnosis, post_mortem.verdict, post_mortem.age_ns, text, "tapes", hung_ns)


def _together(diagnosis: Diagnosis) -> EndedTogether | None:
    first = diagnosis.post_mortem.ended_together
    return EndedTogether(describe_together(first, not diagnosis.post_mortem.unseen)) if first is not None else None


def result_of_leftovers(leftovers: Leftovers) -> DiagnosisResult:
    """Return the result of a diagnosis of leftovers, which show neither living processes nor hosts."""
    dumps = leftovers.dumps
    verdicts = _verdicts_on(dumps) if dumps is not None else ()
    return DiagnosisResult(
        schema=SCHEMA,
        run=DiagnosedRun(
            id=None,
            directory=", ".join(map(str, leftovers.paths)),
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
        problem=leftovers.has_problem,
        threshold_s=leftovers.threshold_s,
        verdict=verdicts[0] if verdicts else None,
        verdicts=verdicts,
        undecided=None,
        ended_together=None,
        ranks=_ranks_of(dumps) if dumps is not None else (),
        stuck_calls=(),
        findings=(),
        past_findings=(),
        warnings=leftovers.notes,
        helps=None,
        helpers=(),
        sections=DiagnosisSections(texts_result(leftovers.texts) if leftovers.texts is not None else None),
    )


def _verdicts_on(dumps: JudgedDumps) -> tuple[VerdictResult, ...]:
    return tuple(
        verdict_result(dumps, verdict, dumps.age_ns(verdict), dumps.text_of(verdict), FLIGHT_RECORDER)
        for verdict in dumps.verdicts
    )


def _begun(dumps: JudgedDumps) -> str | None:
    begun_ns = min((condensed.oldest_ns for condensed in dumps.dumps if condensed.oldest_ns), default=0)
    return iso_time(begun_ns) if begun_ns else None


def _moment_of(dumps: JudgedDumps) -> DiagnosedMoment:
    return DiagnosedMoment(dumps.time_of(dumps.moment_ns), False, dumps.bound or None)


def _ranks_of(dumps: JudgedDumps) -> tuple[RankResult, ...]:
    paths = {condensed.rank: condensed.dump.path for condensed in dumps.dumps}
    return tuple(dumped_rank(dumps, view, paths[view.rank]) for view in dumps.ranks)
