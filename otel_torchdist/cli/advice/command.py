"""`otel-torchdist advice`: its options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from otel_torchdist.advice.advise import advise
from otel_torchdist.advice.model import Advice
from otel_torchdist.cli.advice.wording import PAGES, check, finding
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.histories import Source, source_of
from otel_torchdist.cli.options import RunDirectory, RunOrDumps
from otel_torchdist.cli.output.terminal import print_lines
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import target_of, warn
from otel_torchdist.critical_path.analysis import PathFinder
from otel_torchdist.critical_path.model import CriticalPath
from otel_torchdist.parallelism.calls import CallCounter
from otel_torchdist.parallelism.graph import graph_of
from otel_torchdist.this_process.garbage import without_collecting_garbage

SCHEMA: Final = 1


def advice(
    target: RunOrDumps = None,
    run_dir: RunDirectory = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """To see what is worth looking into: what makes steps long, each with its figures and how to check it.

    Nothing is recommended instead of anything else: it reports what was measured.
    """
    source = source_of(target_of(target or [], run_dir))
    counter, finder = CallCounter(), PathFinder()
    with without_collecting_garbage():
        for history in source.histories:
            counter.add(history)
            finder.add(history)
        calls, path = counter.counted(), finder.path()
        found = advise(graph_of(calls) if calls.groups else None, calls, path)
    warn(source.warnings)
    if path is None and not calls.groups:
        fail(f"{source.place}: {source.emptiness}", ExitCode.NOTHING_FOUND)
    names = _names(path)
    if as_json:
        typer.echo(json.dumps({"schema": SCHEMA, "advice": [_document(one, names) for one in found]}, indent=2))
        return
    print_lines(_lines(found, source, path))


def _names(path: CriticalPath | None) -> Mapping[str, str]:
    return path.group_names if path is not None else dict[str, str]()


def _lines(found: list[Advice], source: Source, path: CriticalPath | None) -> Iterator[Text]:
    yield Text(source.headline)
    names = _names(path)
    if path is None or not path.has_steps:
        yield Text("no steady steps are recorded: nothing is known of the critical path", style="yellow")
    if not found:
        yield Text()
        yield Text("nothing stands out")
    for one in found:
        yield Text()
        yield Text.assemble((one.topic.value, "bold"), f": {finding(one, names)}")
        yield Text(f"    check: {check(one)}")
        yield Text(f"    more: {PAGES[one.topic]}")


def _document(one: Advice, names: Mapping[str, str]) -> dict[str, Any]:
    """One piece of advice; figures that do not apply to it are null."""
    return {
        "topic": one.topic.value,
        "text": finding(one, names),
        "check": check(one),
        "page": PAGES[one.topic],
        "ranks": list(one.ranks),
        "host": one.host or None,
        "role": one.role or None,
        "groups": one.groups or None,
        "path_share": round(one.share, 4) or None,
        "gain_ns": one.gain_ns,
        "step_bytes": one.step_bytes or None,
        "step_operations": one.step_operations or None,
        "operation_bytes": one.operation_bytes or None,
        "ratio": one.ratio or None,
    }
