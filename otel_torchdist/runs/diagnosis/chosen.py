"""The diagnosis of a run together with its related runs and its helpers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from otel_torchdist.errors import RunError, TapeError
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.node.job.runs.runs import Run, may_read_any, other_parts
from otel_torchdist.runs.diagnosis.diagnosis import Diagnosis, diagnose_run
from otel_torchdist.runs.targets import ChosenRun


def diagnose_chosen(chosen: ChosenRun, rules: StallRules, may_read: Callable[[Path], bool] = may_read_any) -> Diagnosis:
    """Diagnose a run, its other parts and its helpers.

    Args:
        chosen: The run.
        rules: The rules for verdicts.
        may_read: Whether another job directory beside that of the run may be read.

    Raises:
        RunError: None of its tapes can be read any more.
    """
    run, index = chosen.run, chosen.index
    related = [*index.runs_sharing_world(run), *index.of_other_sizes(run), *other_parts(run, may_read)]
    try:
        diagnosis = diagnose_run(run, rules, related_runs=related)
    except TapeError as error:
        raise RunError(str(error)) from error
    helpers = tuple(_diagnosed(index.helpers_of(diagnosis.run), rules))
    return dataclasses.replace(diagnosis, warnings=(*chosen.unreadable, *diagnosis.warnings), helpers=helpers)


def _diagnosed(helpers: Iterable[Run], rules: StallRules) -> Iterator[Diagnosis]:
    for helper in helpers:
        with contextlib.suppress(TapeError):  # a damaged helper run does not hide the run itself
            yield diagnose_run(helper, rules)
