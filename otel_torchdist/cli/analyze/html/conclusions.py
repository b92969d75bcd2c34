"""The conclusions of `diagnose` as parts of a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.text import Text

from otel_torchdist.cli.diagnose.leftovers import lines_of as lines_of_leftovers
from otel_torchdist.cli.diagnose.report import VERDICT, conclusion_of, lines_of
from otel_torchdist.cli.output.text import fates
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis, diagnose_run
from otel_torchdist.runs.diagnosis.leftovers import JudgedDumps, Leftovers, diagnose_leftovers
from otel_torchdist.show.report.document import Conclusion

_TONES = {VERDICT: "bad", "ended together": "warn", "undecided": "warn"}


def conclusions_of_run(run: Run, helpers: Iterable[Run], rules: StallRules) -> tuple[list[Conclusion], list[str]]:
    """Judge a run and its helpers. Returns the conclusions and warnings about unreadable parts."""
    try:
        diagnosis = diagnose_run(run, rules)
    except TapeError as error:
        return [], [str(error)]
    conclusions = [_conclusion(diagnosis)]
    for helper in helpers:
        try:
            helper_diagnosis = diagnose_run(helper, rules)
        except TapeError:
            continue  # a damaged helper run does not hide the run itself
        if helper_diagnosis.has_problem:
            conclusions.append(_conclusion(helper_diagnosis))
    return conclusions, list(diagnosis.warnings)


def _conclusion(diagnosis: Diagnosis) -> Conclusion:
    title, sentence, *more = conclusion_of(diagnosis)
    is_well = not diagnosis.has_problem and title not in _TONES
    if title not in _TONES:
        more += fates(account.view for account in diagnosis.ranks)
    return Conclusion(
        tone=_TONES.get(title, "good" if is_well else "warn"),
        title=title,
        sentence=sentence,
        more=tuple(more),
        ranks=diagnosis.post_mortem.named,
        details=_plain(lines_of(diagnosis)),
    )


def conclusions_of_dumps(paths: Iterable[Path], rules: StallRules) -> tuple[list[Conclusion], list[str]]:
    """Judge the files of a job that was not recorded. Returns the conclusions and warnings about unreadable parts."""
    leftovers = diagnose_leftovers(list(paths), rules)
    if leftovers.is_empty:
        return [], list(leftovers.notes)
    verdicts = list(_verdicts(leftovers.dumps)) if leftovers.dumps is not None else []
    details = _plain(lines_of_leftovers(leftovers))
    if verdicts:
        return [_with_details(verdicts[0], details), *verdicts[1:]], list(leftovers.notes)
    tone, title = ("warn", "a failure") if leftovers.has_problem else ("good", "no verdict")
    sentence = _sentence_without_verdict(leftovers)
    return [Conclusion(tone, title, sentence, details=details)], list(leftovers.notes)


def _sentence_without_verdict(leftovers: Leftovers) -> str:
    if leftovers.has_problem:
        return "texts beside the dumps report a failure"
    return f"no operation was open for {leftovers.threshold_s:g} s"


def _verdicts(dumps: JudgedDumps) -> Iterator[Conclusion]:
    for verdict in dumps.verdicts:
        yield Conclusion("bad", VERDICT, dumps.text_of(verdict), ranks=tuple(verdict.ranks))


def _with_details(conclusion: Conclusion, details: str) -> Conclusion:
    return Conclusion(
        conclusion.tone, conclusion.title, conclusion.sentence, conclusion.more, conclusion.ranks, details
    )


def _plain(lines: Iterable[Text]) -> str:
    return "\n".join(line.plain for line in lines)
