"""`otel-torchdist export`: its options."""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.export.flight_recorder import export_flight_recorder
from otel_torchdist.cli.export.otlp import SpanOptions, export_otlp
from otel_torchdist.cli.export.parquet import ParquetError, check_tables_folder, write_parquet
from otel_torchdist.cli.export.perfetto import Limits, export_perfetto
from otel_torchdist.cli.export.recording_spans.recording import WantedCalls
from otel_torchdist.cli.options import RunDirectory, Threshold, WorldSize, check_options, complete_target
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.targets import ranks_of, steps_of, target_of, warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.model.text import readable
from otel_torchdist.runs.segments import segments_of_archive, segments_of_run
from otel_torchdist.runs.targets import Target, chosen_archived_run, chosen_run
from otel_torchdist.sources.archive.reading import is_archive
from otel_torchdist.sources.flight.export.selection import ExportChoice
from otel_torchdist.system.this_process.commands import without_collecting_garbage


def export_parquet(wanted: Target, folder: Path, ranks: frozenset[int] | None, force: bool) -> None:
    """Write a run's tables; ends the command on errors.

    Args:
        wanted: The run, or its archive.
        folder: The folder for the files.
        ranks: Ranks whose operations are written; None for all.
        force: Whether the folder may hold other files.
    """
    if find_spec("pyarrow") is None:
        fail("--parquet needs pyarrow: pip install 'otel-torchdist[analysis]'", ExitCode.UNAVAILABLE)
    if wanted.paths and not all(map(is_archive, wanted.paths)):
        fail(
            f"{readable(str(wanted.paths[0]))}: not an archive; --parquet reads archives and tapes",
            ExitCode.NOTHING_FOUND,
        )
    notes: list[str] = []
    try:
        check_tables_folder(folder, force)
        if wanted.paths:
            archived, notes = chosen_archived_run(wanted.paths, wanted.run)
            label, ranks_in_run = archived.label, {rank.rank for rank in archived.ranks}
            segments = segments_of_archive(archived, ranks, notes)
        else:
            chosen = chosen_run(Config.from_environment(), wanted.run, wanted.run_dir)
            notes.extend(chosen.unreadable)
            label, ranks_in_run = chosen.run.label or "-", set(chosen.run.ranks)
            segments = segments_of_run(chosen.run, ranks, notes)
        notes.extend(without_calls(ranks, ranks_in_run))
        if ranks is not None and not ranks & ranks_in_run:
            warn(notes)
            fail(f"run {label}: no matching call; nothing was written", ExitCode.NOTHING_FOUND)
        with without_collecting_garbage():
            written = write_parquet(folder, segments)
    except ParquetError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    warn(notes)
    counts = ", ".join(
        f"{rows:,} {name.removesuffix('s') if rows == 1 else name}" for name, rows in written.rows.items()
    )
    typer.echo(f"run {label} in {shown(folder)}: {counts}; {written.bytes:,} bytes")
    typer.echo(f"query with: duckdb -c \"SELECT * FROM '{shown(folder)}/operations.parquet' LIMIT 10\"")


_AMOUNT: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|)")
_A_NUMBER: Final = "a number of calls, such as 2000"
_A_TIME: Final = "a time, such as 500ms, 60s, 5m or 1h"
_UNITS_NS: Final = {"ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}


def choice_of(kinds: str, last: str) -> ExportChoice:
    """Return the calls selected by `--kinds` and `--last`.

    Raises:
        typer.BadParameter: `last` is neither a number above 0 nor a duration.
    """
    names = tuple(name.strip() for name in kinds.split(",") if name.strip())
    if not last:
        return ExportChoice(names)
    amount, unit = _split_amount(last, ("", *_UNITS_NS), f"{_A_NUMBER}, or {_A_TIME}", "--last")
    if not unit:
        return ExportChoice(names, newest=amount)
    return ExportChoice(names, within_ns=amount * _UNITS_NS[unit])


def newest_of(last: str) -> int | None:
    """Return the number of newest calls in `--last`; None for the default number.

    Raises:
        typer.BadParameter: `last` is not a number above 0.
    """
    return _split_amount(last, ("",), _A_NUMBER, "--last")[0] if last else None


def duration_of(text: str) -> int | None:
    """Return the duration in `--around`, in nanoseconds; None for all calls.

    Raises:
        typer.BadParameter: The text is not a duration above 0.
    """
    if not text:
        return None
    amount, unit = _split_amount(text, _UNITS_NS, _A_TIME, "--around")
    return amount * _UNITS_NS[unit]


def _split_amount(text: str, units: Collection[str], expected: str, option: str) -> tuple[int, str]:
    """Split a text into a number above 0 and a unit. The unit '' stands for a number of calls."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None or match[2] not in units or not int(match[1]):
        raise typer.BadParameter(f"{text!r}: expected {expected}", param_hint=option)
    return int(match[1]), match[2]


_DUMPS: Final = "--flight-recorder"
_SPANS: Final = "--otlp"
_OUTPUTS_ACCEPTING: Final = {
    "kinds": (_DUMPS,),
    "last": (_DUMPS, _SPANS),
    "steps": ("--perfetto",),
    "around": ("--perfetto",),
    "otlp_endpoint": (_SPANS,),
    "output": (_SPANS,),
    "threshold": (_SPANS,),
    "world_size": (_SPANS,),
    "dry_run": (_SPANS,),
    "force": (_DUMPS, "--perfetto", "--parquet"),
}
"""Outputs that accept an option, by parameter, for options that not all outputs accept."""


def export(
    context: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|PATH...]",
            help="The first digits of the run's id. Without it: the run that started last. Or an archive, followed by "
            "these digits if it holds several runs; for a timeline also dumps or traces, and for spans dumps.",
            autocompletion=complete_target,
            show_default=False,
        ),
    ] = None,
    flight_recorder: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            show_default=False,
            help="Write dumps of PyTorch's flight recorder into this folder, one for each rank, for `torchfrtrace`.",
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Write a timeline into this file, for https://ui.perfetto.dev; compressed if its name ends in `.gz`.",
        ),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT",
            show_default=False,
            help="Write the operations as tables of Parquet into this folder, for DuckDB, pandas or Spark. Needs the "
            "extra `analysis`.",
        ),
    ] = None,
    run_dir: RunDirectory = None,
    kinds: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="With --flight-recorder: operations to write, such as `all_reduce,send` or `all_*`, and the different "
            "operations that other ranks called with the same sequence number. Without it: all.",
        ),
    ] = "",
    ranks: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Ranks to write, such as `0-7,12`. Without it: all; with --otlp, the 64 ranks that matter most to the "
            "verdict.",
        ),
    ] = "",
    last: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Write only the newest calls: `2000` for this many of each rank, or with --flight-recorder `60s` for "
            "the calls within this time before the newest. Open calls are always written. Without it: all; with "
            "--otlp, 200 of each rank, or fewer if that makes more than 5,000.",
        ),
    ] = "",
    steps: Annotated[
        str, typer.Option(show_default=False, help="With --perfetto: steps to write, such as `100-120`.")
    ] = "",
    around: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="With --perfetto: write only what is within this time of the stall, such as `60s`, or of the end if "
            "nothing has stalled.",
        ),
    ] = "",
    otlp: Annotated[
        bool,
        typer.Option(
            "--otlp",
            help="Send the calls in dumps of the flight recorder as spans, with a trace for each verdict, for Jaeger.",
        ),
    ] = False,
    otlp_endpoint: Annotated[
        str,
        typer.Option(
            help="With --otlp: the receiver of spans, such as http://localhost:4317. Without it: as set by "
            "OTEL_EXPORTER_OTLP_ENDPOINT. The other OTEL_EXPORTER_OTLP_* variables apply as well; port 4318 needs "
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf.",
            show_default=False,
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="With --otlp: send nothing, but write the spans to this new file, as OTLP JSON lines.",
        ),
    ] = None,
    threshold: Threshold = None,
    world_size: WorldSize = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --otlp: send nothing; show what would be sent.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write to OUT or FILE even if another program has written there.")
    ] = False,
) -> None:
    """For other tools: write the calls of ranks as dumps, a timeline, tables or spans.

    It reads the tapes of a running or ended run, or its archive, and does not change them. With `--otlp` it reads
    dumps. Sending the same files again makes the same spans with the same ids, so Jaeger shows them once.
    """
    outputs = {"--flight-recorder": flight_recorder, "--perfetto": perfetto, "--parquet": parquet, "--otlp": otlp}
    named = [name for name, value in outputs.items() if value not in (None, False)]
    if len(named) != 1:
        raise typer.BadParameter(
            "name one output: --flight-recorder OUT, --perfetto FILE, --parquet OUT or --otlp", param_hint="export"
        )
    check_options(context, _OUTPUTS_ACCEPTING, named[0])
    wanted, wanted_ranks = target_of(target or [], run_dir, opens_bundles=not otlp), ranks_of(ranks)
    if flight_recorder is not None:
        export_flight_recorder(wanted, flight_recorder, choice_of(kinds, last), wanted_ranks, force)
    elif perfetto is not None:
        export_perfetto(wanted, perfetto, Limits(wanted_ranks, steps_of(steps), duration_of(around)), force)
    elif parquet is not None:
        export_parquet(wanted, parquet, wanted_ranks, force)
    else:
        choice = WantedCalls(newest_of(last), wanted_ranks)
        export_otlp(wanted.paths, SpanOptions(otlp_endpoint, output, choice, threshold, world_size, dry_run))
