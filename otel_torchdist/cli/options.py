"""Options shared by several commands, and their shell completion."""

from __future__ import annotations

import glob
import itertools
import logging
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.runs.runs import Run, whole_index
from otel_torchdist.tape.layout import MAX_RANKS

MAX_PATHS: Final = 256
"""Upper bound on the paths that are offered as completions."""


def complete_target(incomplete: str) -> list[tuple[str, str]]:
    """Return matching run ids, then matching paths: the shell does not add paths to what a program completes."""
    paths = itertools.islice(glob.iglob(f"{glob.escape(incomplete)}*"), MAX_PATHS) if incomplete else ()
    return [*complete_run(incomplete), *((path + os.sep * os.path.isdir(path), "") for path in sorted(paths))]


def complete_run(incomplete: str) -> list[tuple[str, str]]:
    """Return the run ids that begin with `incomplete`, newest first, each with a description of the run."""
    # The shell would show a warning in the middle of the command line.
    logging.getLogger("otel_torchdist").addHandler(logging.NullHandler())
    try:
        index = whole_index(Config.from_environment(), None)
    except TapeError:
        return []
    return [(run.label, _summary(run)) for run in index.runs if run.label.startswith(incomplete.lower())]


def _summary(run: Run) -> str:
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.begun_ns / 1e9))
    return f"{run.world_size} ranks, started {begun}"


RunOrDumps: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN|PATH…]",
        help="The first digits of a run's id; without it, the run that started last. Or an archive, followed by these "
        "digits if it holds several runs, or dumps of PyTorch's flight recorder, in folders, archives, or one by one.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
RunDumpsOrTraces: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN|PATH…]",
        help="The first digits of a run's id; without it, the run that started last. Or dumps of PyTorch's flight "
        "recorder, or traces of `torch.profiler` (or execution traces), in folders, archives, or one by one.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
RunDirectory: TypeAlias = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, resolve_path=True, help="The job directory, or a copy of one."),
]
Threshold: TypeAlias = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        help="Seconds after which an open operation counts as stalled. "
        "Without it: as set by OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT, else 10.",
    ),
]
WorldSize: TypeAlias = Annotated[
    int,
    typer.Option(
        min=0,
        max=MAX_RANKS,
        help="Number of ranks in the job, for dumps that do not record it, such as gloo's.",
        show_default=False,
    ),
]


def check_options(context: typer.Context, outputs_accepting: Mapping[str, Collection[str]], chosen: str) -> None:
    """Refuse options on the command line that do not apply to the chosen output.

    Args:
        context: Context of the command.
        outputs_accepting: Outputs that accept a parameter, by parameter. All outputs accept a parameter not listed.
        chosen: The output, such as `--perfetto`.

    Raises:
        typer.BadParameter: The output does not accept an option.
    """
    for parameter in context.command.params:
        outputs = outputs_accepting.get(parameter.name or "")
        source = context.get_parameter_source(parameter.name or "")
        if outputs is not None and chosen not in outputs and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"applies only to {' and '.join(outputs)}", param_hint=parameter.opts[0])
