"""`otel-torchdist export`: its options, and what it reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from otel_torchdist.cli.completion import complete_target
from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.export.folder import FolderError, check_folder, write_dumps
from otel_torchdist.cli.export.options import choice_of, time_of
from otel_torchdist.cli.export.parquet_command import export_parquet
from otel_torchdist.cli.export.perfetto import Limits, export_perfetto
from otel_torchdist.cli.export.report import report
from otel_torchdist.cli.options import RunDirectory
from otel_torchdist.cli.output.text import fail
from otel_torchdist.cli.targets import chosen_run, ranks_of, steps_of, target_of, warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.flight.export.choice import Choice
from otel_torchdist.flight.export.dumps import dumps_of
from otel_torchdist.flight.export.pickles import pickled
from otel_torchdist.history.tapes import histories_of
from otel_torchdist.job.runs.runs import Run
from otel_torchdist.model.history import RankHistory
from otel_torchdist.naming import readable
from otel_torchdist.this_process.garbage import without_collecting_garbage


def export(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|PATH...]",
            help="The first digits of the run's id. Without it: the run that started last. Or an archive, with these "
            "digits behind it if it has several runs; for a timeline also dumps or traces.",
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
            help="Operations to write, such as `all_reduce,send` or `all_*`, with whatever other ranks called in their "
            "place. Without it: all.",
        ),
    ] = "",
    ranks: Annotated[
        str, typer.Option(show_default=False, help="Ranks to write, such as `0-7,12`. Without it: all.")
    ] = "",
    last: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="Write only the newest calls: this many of each rank, such as `2000`, or those within a time before "
            "the newest call, such as `60s`. What is open is always written.",
        ),
    ] = "",
    steps: Annotated[
        str, typer.Option(show_default=False, help="With --perfetto: steps to write, such as `100-120`.")
    ] = "",
    around: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="With --perfetto: write what is within this time of the stall, such as `60s`, or of the end if "
            "nothing has stalled.",
        ),
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Write to OUT or FILE even if another program has written there.")
    ] = False,
) -> None:
    """For other tools: write what ranks have called in a format that those open.

    It reads the tapes of a run, whether that is running or has ended, in whatever way, or its archive, and changes
    nothing there.
    """
    if sum(output is not None for output in (flight_recorder, perfetto, parquet)) != 1:
        raise typer.BadParameter(
            "name one output: --flight-recorder OUT, --perfetto FILE or --parquet OUT", param_hint="export"
        )
    choice, wanted = choice_of(kinds, last), ranks_of(ranks)
    chosen_source = target_of(target or [], run_dir)
    if flight_recorder is None and (kinds or last):
        raise typer.BadParameter("they are for --flight-recorder", param_hint="--kinds, --last")
    if perfetto is None and (steps or around):
        raise typer.BadParameter("they are for --perfetto", param_hint="--steps, --around")
    if parquet is not None:
        export_parquet(chosen_source, parquet, wanted, force)
        return
    if perfetto is not None:
        export_perfetto(chosen_source, perfetto, Limits(wanted, steps_of(steps), time_of(around)), force)
        return
    assert flight_recorder is not None
    if chosen_source.paths:
        raise typer.BadParameter("dumps are written from tapes alone", param_hint="--flight-recorder")
    try:
        check_folder(flight_recorder, force)
        wanted_run = chosen_run(Config.from_environment(), chosen_source.run, chosen_source.run_dir)
        warn(wanted_run.unreadable)
        chosen = wanted_run.run
        with without_collecting_garbage():
            histories = _histories(chosen, wanted)
            _check_kinds(choice, histories)
            exported = dumps_of(histories, choice)
            write_dumps(flight_recorder, ((dump.rank, pickled(dump)) for dump in exported.dumps))
    except FolderError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    for line in report(exported, chosen, flight_recorder):
        typer.echo(line)


def _histories(run: Run, wanted: frozenset[int] | None) -> list[RankHistory]:
    """The calls of the wanted ranks."""
    if wanted is None:
        histories, unreadable = histories_of(run)
    else:
        tapes = tuple(tape for tape in run.tapes if tape.identity.rank in wanted)
        histories, unreadable = histories_of(dataclasses.replace(run, tapes=tapes))
        unreadable.extend(without_calls(wanted, run.ranks))
    warn(unreadable)
    if not histories:
        fail(f"{run.directory}: no tape of the ranks that were asked for can be read", ExitCode.NOTHING_FOUND)
    return histories


def _check_kinds(choice: Choice, histories: Iterable[RankHistory]) -> None:
    """Warn of kinds that no rank has called, as of a wrong name."""
    called = {operation.name for history in histories for operation in history.operations}
    unused = [kind for kind in choice.kinds if not any(fnmatchcase(name, kind) for name in called)]
    if unused:
        names = ", ".join(sorted(called)) or "no calls"
        warn([f"--kinds: no rank has called {', '.join(map(readable, unused))}; on the tapes: {names}"])
