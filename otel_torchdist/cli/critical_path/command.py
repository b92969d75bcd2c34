"""`otel-torchdist critical-path`: its options."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from otel_torchdist.cli.critical_path.document import document_of
from otel_torchdist.cli.critical_path.report import lines_of
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.histories import timed_source_of
from otel_torchdist.cli.options import RunDirectory, RunOrDumps
from otel_torchdist.cli.output.terminal import print_lines
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import target_of, warn
from otel_torchdist.critical_path.analysis import MOST_CALLS, critical_path_of
from otel_torchdist.this_process.garbage import without_collecting_garbage


def critical_path(
    target: RunOrDumps = None,
    run_dir: RunDirectory = None,
    calls: Annotated[
        int, typer.Option(min=1_000, help="Look at the newest steps with about so many calls of all ranks together.")
    ] = MOST_CALLS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """To see what determines how long a step takes: the critical path through all ranks, by rank, line and group.

    For what makes steps longer than they need to be, the recorded calls are replayed without it: so the gain is what a
    step would be shorter at most.
    """
    source = timed_source_of(target_of(target or [], run_dir))
    with without_collecting_garbage():
        found = critical_path_of(source.histories, calls)
    warn(source.warnings)
    if found is None:
        fail(f"{source.place}: {source.emptiness}", ExitCode.NOTHING_FOUND)
    if as_json:
        typer.echo(json.dumps(document_of(found, source), indent=2))
        return
    print_lines(lines_of(found, source))
