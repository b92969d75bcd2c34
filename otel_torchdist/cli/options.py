"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from otel_torchdist.cli.completion import complete_target
from otel_torchdist.tape.layout import MAX_RANKS

RunOrDumps: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN|PATH…]",
        help="The first digits of a run's id; without it, the run that started last. Or an archive, with these "
        "digits behind it if it has several runs, or dumps of PyTorch's flight recorder, in folders, archives, or one "
        "by one.",
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
        help="Ranks of the job, for dumps that do not show it, as those of gloo.",
        show_default=False,
    ),
]
