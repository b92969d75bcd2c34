"""`export --flight-recorder`: writes dumps of PyTorch's flight recorder."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.export.folder import FolderError, check_folder, write_dumps
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.targets import Target, chosen_run, warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.flight.export.dumps import Exported, dumps_of
from otel_torchdist.flight.export.pickles import pickled
from otel_torchdist.flight.export.selection import ExportChoice
from otel_torchdist.history.tapes import histories_of
from otel_torchdist.job.runs.runs import Run
from otel_torchdist.model.history import RankHistory
from otel_torchdist.naming import have, name_ranks, readable
from otel_torchdist.this_process.commands import without_collecting_garbage

_MAX_NAMES: Final = 8


def export_flight_recorder(
    wanted: Target, folder: Path, choice: ExportChoice, ranks: frozenset[int] | None, force: bool
) -> None:
    """Write dumps of a run; ends the command if that is not possible.

    Args:
        wanted: The run.
        folder: Where files are written.
        choice: The calls to write.
        ranks: Ranks whose calls are written; None for all.
        force: Whether the folder may hold other files.
    """
    if wanted.paths:
        raise typer.BadParameter("dumps are written from tapes alone", param_hint="--flight-recorder")
    try:
        check_folder(folder, force)
        chosen = chosen_run(Config.from_environment(), wanted.run, wanted.run_dir)
        warn(chosen.unreadable)
        with without_collecting_garbage():
            histories = _histories(chosen.run, ranks)
            _check_kinds(choice, histories)
            exported = dumps_of(histories, choice)
            write_dumps(folder, ((dump.rank, pickled(dump)) for dump in exported.dumps))
    except FolderError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    for line in _report(exported, chosen.run, folder):
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


def _check_kinds(choice: ExportChoice, histories: Iterable[RankHistory]) -> None:
    """Warn of kinds that no rank has called, as of a wrong name."""
    called = {operation.name for history in histories for operation in history.operations}
    unused = [kind for kind in choice.kinds if not any(fnmatchcase(name, kind) for name in called)]
    if unused:
        names = ", ".join(sorted(called)) or "no calls"
        warn([f"--kinds: no rank has called {', '.join(map(readable, unused))}; on the tapes: {names}"])


def _report(exported: Exported, run: Run, folder: Path) -> Iterator[str]:
    """Yield the lines: what was written, what was not, and how it is opened.

    Args:
        exported: What was written.
        run: The run that it was written from.
        folder: Where it was written.
    """
    calls = sum(len(dump.entries) for dump in exported.dumps)
    dumps = _count(len(exported.dumps), "dump")
    yield f"{dumps} with {_count(calls, 'call')} of run {run.label or '-'} in {shown(folder)}"
    for reason, names in exported.left_out.counts():
        yield f"{_count(names.total(), 'call')} left out ({_listed(names)}): {reason.value}"
    for backend, library in sorted(exported.renamed.items()):
        name = readable(backend) or "without a name"
        yield f"backend {name} is written as {library}, because torchfrtrace may not know it"
    ranks = {dump.rank for dump in exported.dumps}
    members = {rank for dump in exported.dumps for group in dump.groups.values() for rank in group.ranks}
    missing = sorted({*range(run.world_size), *members} - ranks)
    if missing:
        yield f"{name_ranks(missing)} {have(missing)} no dump here, so torchfrtrace needs --allow-incomplete-ranks"
    incomplete = " --allow-incomplete-ranks" if missing else ""
    yield f"open with: torchfrtrace {shown(folder)}{incomplete}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _listed(names: Counter[str]) -> str:
    """`put 12, signal 3`."""
    listed = [f"{readable(name)} {count:,}" for name, count in names.most_common(_MAX_NAMES)]
    more = len(names) - len(listed)
    return ", ".join([*listed, f"and {more} more"] if more else listed)
