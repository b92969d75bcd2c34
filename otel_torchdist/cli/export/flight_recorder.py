"""`export --flight-recorder`: writes dumps of PyTorch's flight recorder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.text import fail, shown
from otel_torchdist.cli.targets import warn, without_calls
from otel_torchdist.config import Config
from otel_torchdist.errors import TorchDistError
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.text import have, name_ranks, readable
from otel_torchdist.node.job.runs.runs import Run
from otel_torchdist.runs.targets import Target, chosen_run
from otel_torchdist.sources.flight.export.dumps import Exported, dumps_of
from otel_torchdist.sources.flight.export.pickles import PREFIX, is_marked, pickled
from otel_torchdist.sources.flight.export.selection import ExportChoice
from otel_torchdist.sources.history.tapes import histories_of
from otel_torchdist.system.progress import progress, track
from otel_torchdist.system.this_process.commands import delaying_signals, without_collecting_garbage

_DUMP_NAME: Final = re.compile(re.escape(PREFIX) + r"\d+")
_UNFINISHED_PREFIX: Final = ".otel-torchdist-"
"""Prefix of files that are not complete yet. `torchfrtrace` opens all files whose names contain `PREFIX`."""
_START_BYTES: Final = 256
"""An earlier export has its mark within this many bytes of the start of a file."""


class FolderError(TorchDistError):
    """A folder cannot be written, or holds files of other programs; the message names it and gives the reason."""


def check_folder(folder: Path, force: bool) -> None:
    """Check that a folder may be written: it is missing, empty, or holds only an earlier export.

    Args:
        folder: The folder for dumps.
        force: Whether the folder may hold other files.

    Raises:
        FolderError: It must not be written.
    """
    try:
        foreign = sorted(entry.name for entry in os.scandir(folder) if not _is_ours(entry)) if folder.exists() else []
    except OSError as error:
        raise FolderError(f"{folder}: {error.strerror}") from error
    if foreign and not force:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise FolderError(
            f"{folder}: it holds files of other programs ({foreign[0]}{more}); "
            "name another folder, or use --force, which replaces dumps there and leaves other files alone"
        )


def write_dumps(folder: Path, dumps: Iterable[tuple[int, bytes]]) -> int:
    """Replace all dumps in a folder. The old dumps stay until all new ones are complete.

    Args:
        folder: Created if missing.
        dumps: Ranks, each with the content of its file.

    Returns:
        Number of bytes written.

    Raises:
        FolderError: The folder cannot be written; its content is unchanged.
    """
    created = not folder.exists()
    final_paths: dict[Path, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        total = 0
        for rank, content in dumps:
            unfinished = folder / f"{_UNFINISHED_PREFIX}{rank}.{os.getpid()}.part"
            final_paths[unfinished] = folder / f"{PREFIX}{rank}"
            unfinished.write_bytes(content)
            total += len(content)
        with delaying_signals():
            _replace(folder, final_paths)
    except OSError as error:
        raise FolderError(f"{error.filename or folder}: {error.strerror}") from error
    finally:
        for unfinished in final_paths:
            unfinished.unlink(missing_ok=True)
        if created:
            with contextlib.suppress(OSError):  # not empty: it holds the dumps
                folder.rmdir()
    return total


def _replace(folder: Path, final_paths: dict[Path, Path]) -> None:
    for unfinished, final in final_paths.items():
        os.replace(unfinished, final)
    new_names = {final.name for final in final_paths.values()}
    for entry in list(os.scandir(folder)):
        is_stale = _DUMP_NAME.fullmatch(entry.name) or entry.name.startswith(_UNFINISHED_PREFIX)
        if is_stale and entry.name not in new_names:
            os.unlink(entry)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file(follow_symlinks=False):
        return False
    if entry.name.startswith(_UNFINISHED_PREFIX):
        return True  # left by an export that was killed
    if not _DUMP_NAME.fullmatch(entry.name):
        return False
    with open(entry, "rb") as file:
        return is_marked(file.read(_START_BYTES))


_MAX_NAMES: Final = 8


def export_flight_recorder(
    wanted: Target, folder: Path, choice: ExportChoice, ranks: frozenset[int] | None, force: bool
) -> None:
    """Write dumps of a run; ends the command on errors.

    Args:
        wanted: The run.
        folder: The folder for the dumps.
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
            with progress("Converting calls"):
                exported = dumps_of(histories, choice)
            dumps = track(exported.dumps, "Writing dumps", "dumps", len(exported.dumps))
            write_dumps(folder, ((dump.rank, pickled(dump)) for dump in dumps))
    except FolderError as error:
        fail(str(error), ExitCode.NO_DIRECTORY)
    for line in _report(exported, chosen.run, folder):
        typer.echo(line)


def _histories(run: Run, wanted: frozenset[int] | None) -> list[RankHistory]:
    """Return the calls of the wanted ranks."""
    if wanted is None:
        histories, unreadable = _read_tapes(run)
    else:
        tapes = tuple(tape for tape in run.tapes if tape.identity.rank in wanted)
        histories, unreadable = _read_tapes(dataclasses.replace(run, tapes=tapes))
        unreadable.extend(without_calls(wanted, run.ranks))
    warn(unreadable)
    if not histories:
        fail(f"{run.place}: no tape of the requested ranks can be read", ExitCode.NOTHING_FOUND)
    return histories


def _read_tapes(run: Run) -> tuple[list[RankHistory], list[str]]:
    with progress("Reading tapes", "tapes", len(run.tapes)) as advance:
        return histories_of(run, advance)


def _check_kinds(choice: ExportChoice, histories: Iterable[RankHistory]) -> None:
    """Warn about kinds that no rank has called, such as misspelled names."""
    called = {operation.name for history in histories for operation in history.operations}
    unused = [kind for kind in choice.kinds if not any(fnmatchcase(name, kind) for name in called)]
    if unused:
        names = ", ".join(sorted(called)) or "no calls"
        warn([f"--kinds: no rank has called {', '.join(map(readable, unused))}; on the tapes: {names}"])


def _report(exported: Exported, run: Run, folder: Path) -> Iterator[str]:
    """Yield the lines of the report: calls written, calls left out, and the command that opens the dumps."""
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


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _listed(names: Counter[str]) -> str:
    """Format counts as `put 12, signal 3`."""
    listed = [f"{readable(name)} {count:,}" for name, count in names.most_common(_MAX_NAMES)]
    more = len(names) - len(listed)
    return ", ".join([*listed, f"and {more} more"] if more else listed)
