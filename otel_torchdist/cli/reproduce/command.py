"""`otel-torchdist reproduce`: its options, and where the script goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.options import RunDirectory, RunOrDumps, Threshold, WorldSize
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.reproduce.evidence import Evidence, evidence_of_dumps, evidence_of_run, no_script
from otel_torchdist.cli.targets import target_of, warn
from otel_torchdist.config import Config
from otel_torchdist.reproducer.model import NotReproducibleError
from otel_torchdist.reproducer.planning.plan import plan
from otel_torchdist.reproducer.source import source_of

_USUAL_NAME: Final = "hang.py"


def reproduce(
    target: RunOrDumps = None,
    run_dir: RunDirectory = None,
    threshold: Threshold = None,
    world_size: WorldSize = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", dir_okay=False, help="The file to write; without it, the standard output."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """To report a hang: write a short script that hangs in the same way under torchrun, and needs torch only.

    It makes the last calls of the ranks that the verdict is about, with gloo on one machine: the same operations,
    groups, shapes and order; the rank that did not come stays away.
    """
    if output is not None and output.exists() and not force:
        fail(f"{shown(output)} exists; --force replaces it", ExitCode.NO_DIRECTORY)
    evidence = _evidence(target or [], run_dir, world_size, threshold)
    warn(evidence.warnings)
    try:
        script = plan(evidence.verdict, evidence.world, evidence.histories, evidence.origin)
    except NotReproducibleError as error:
        no_script(str(error))
    _write(source_of(script, _USUAL_NAME if output is None else output.name), output, force)


def _evidence(target: Sequence[str], run_dir: Path | None, world_size: int, threshold_s: float | None) -> Evidence:
    config, wanted = Config.from_environment(), target_of(target, run_dir)
    if wanted.paths:
        return evidence_of_dumps(config, wanted.paths, world_size, threshold_s)
    return evidence_of_run(config, wanted, threshold_s)


def _write(source: str, output: Path | None, force: bool) -> None:
    if output is None:
        typer.echo(source, nl=False)
        return
    try:
        with output.open("w" if force else "x", encoding="ascii") as file:
            file.write(source)
    except OSError as error:
        fail(f"{shown(output)}: {error.strerror}", ExitCode.NO_DIRECTORY)
    typer.echo(f"otel-torchdist: wrote {shown(output)}", err=True)
