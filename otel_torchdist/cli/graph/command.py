"""`otel-torchdist graph`: its options."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.graph.document import document_of
from otel_torchdist.cli.graph.report import lines_of
from otel_torchdist.cli.histories import source_of
from otel_torchdist.cli.options import RunDirectory, RunDumpsOrTraces
from otel_torchdist.cli.output.terminal import print_lines
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import target_of, warn
from otel_torchdist.parallelism.calls import calls_of
from otel_torchdist.parallelism.graph import graph_of
from otel_torchdist.this_process.garbage import without_collecting_garbage


def graph(
    target: RunDumpsOrTraces = None,
    run_dir: RunDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """To see how the ranks share the work: the axes of the parallel world, what each is for, and what moves along them.

    Axes follow from the members of process groups, and what they are for (data, tensor, pipeline, expert parallelism)
    from what is called in them; names of groups are only compared with that.
    """
    source = source_of(target_of(target or [], run_dir))
    with without_collecting_garbage():
        calls = calls_of(source.histories)
    warn(source.warnings)
    if not calls.groups:
        fail(f"{source.place}: {source.emptiness}", ExitCode.NOTHING_FOUND)
    found = graph_of(calls)
    if as_json:
        typer.echo(json.dumps(document_of(found, source), indent=2))
        return
    print_lines(lines_of(found, source))
