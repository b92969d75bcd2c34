"""What `diagnose` finds, in the words of `diagnose`, as a report has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.text import Text

from otel_torchdist.cli.diagnose.diagnosis import Diagnosis, diagnose_run
from otel_torchdist.cli.diagnose.leftovers import JudgedDumps, Leftovers, diagnose_leftovers
from otel_torchdist.cli.diagnose.leftovers import lines_of as lines_of_leftovers
from otel_torchdist.cli.diagnose.report import VERDICT, conclusion_of, lines_of
from otel_torchdist.cli.output.text import fates
from otel_torchdist.errors import TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.show.report.document import Conclusion

_TONES = {VERDICT: "bad", "ended together": "warn", "undecided": "warn"}


def conclusions_of_run(run: Run, helpers: Iterable[Run], rules: StallRules) -> tuple[list[Conclusion], list[str]]:
    """Judge a run and its helpers; returns what comes of it, and what could not be read."""
    try:
        diagnosis = diagnose_run(run, rules)
    except TapeError as error:
        return [], [str(error)]
    found = [_of(diagnosis)]
    for helper in helpers:
        try:
            of_helper = diagnose_run(helper, rules)
        except TapeError:
            continue  # damaged: what can be read of the run itself is still shown
        if of_helper.has_problem:
            found.append(_of(of_helper))
    return found, list(diagnosis.warnings)


def _of(diagnosis: Diagnosis) -> Conclusion:
    title, sentence, *more = conclusion_of(diagnosis)
    is_well = not diagnosis.has_problem and title not in _TONES
    if title not in _TONES:
        more += fates(account.view for account in diagnosis.ranks)
    return Conclusion(
        tone=_TONES.get(title, "good" if is_well else "warn"),
        title=title,
        sentence=sentence,
        more=tuple(more),
        ranks=diagnosis.found.named,
        details=_plain(lines_of(diagnosis)),
    )


def conclusions_of_dumps(paths: Iterable[Path], rules: StallRules) -> tuple[list[Conclusion], list[str]]:
    """Judge what a job has left; returns what comes of it, and what could not be read."""
    found = diagnose_leftovers(list(paths), rules)
    if found.is_empty:
        return [], list(found.notes)
    verdicts = list(_verdicts(found.dumps)) if found.dumps is not None else []
    details = _plain(lines_of_leftovers(found))
    if verdicts:
        return [_with_details(verdicts[0], details), *verdicts[1:]], list(found.notes)
    tone, title = ("warn", "a failure") if found.has_problem else ("good", "no verdict")
    sentence = _without_verdict(found)
    return [Conclusion(tone, title, sentence, details=details)], list(found.notes)


def _without_verdict(found: Leftovers) -> str:
    if found.has_problem:
        return "texts beside the dumps report a failure"
    return f"no operation was open for {found.threshold_s:g} s"


def _verdicts(dumps: JudgedDumps) -> Iterator[Conclusion]:
    for verdict in dumps.verdicts:
        yield Conclusion("bad", VERDICT, dumps.text_of(verdict), ranks=tuple(verdict.ranks))


def _with_details(conclusion: Conclusion, details: str) -> Conclusion:
    return Conclusion(
        conclusion.tone, conclusion.title, conclusion.sentence, conclusion.more, conclusion.ranks, details
    )


def _plain(lines: Iterable[Text]) -> str:
    return "\n".join(line.plain for line in lines)
