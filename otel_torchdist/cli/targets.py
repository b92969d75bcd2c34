"""The target of a command, and options that select a part of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import typer

from otel_torchdist.cli.output.text import MAX_LINE
from otel_torchdist.model.text import have, listed_ranks, name_ranks, readable
from otel_torchdist.runs.targets import Target, is_run_id
from otel_torchdist.runs.targets import target_of as target_at

_STEPS: Final = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")


def target_of(arguments: Sequence[str], run_dir: Path | None, opens_bundles: bool = True) -> Target:
    """Decide whether arguments are a run's id or paths.

    Args:
        arguments: Arguments as typed.
        run_dir: Value of `--run-dir`.
        opens_bundles: Whether to read the tapes in a bundle, and not the dumps of the flight recorder in it.

    Raises:
        RunError: They are neither.
        typer.BadParameter: Both paths and `run_dir` are given.
    """
    if run_dir is not None and not is_run_id(arguments):
        raise typer.BadParameter("a path and --run-dir exclude each other", param_hint="--run-dir")
    target = target_at(arguments, run_dir, opens_bundles)
    for note in target.notes:
        typer.echo(f"otel-torchdist: {readable(note, MAX_LINE)}", err=True)
    return target


def ranks_of(text: str) -> frozenset[int] | None:
    """Return the ranks that `--ranks` lists, such as `0-7,12`; None for all.

    Raises:
        typer.BadParameter: A part is neither a rank nor a range of ranks.
    """
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not listed_ranks(part)), None)
    if wrong is not None:
        raise typer.BadParameter(f"{wrong!r}: expected ranks such as 0-7,12", param_hint="--ranks")
    return frozenset(rank for part in parts for rank in listed_ranks(part))


def without_calls(wanted: Collection[int] | None, with_calls: Iterable[int]) -> list[str]:
    """Return a warning about ranks in `--ranks` without calls; empty if there are none.

    Args:
        wanted: The ranks in `--ranks`; None for all.
        with_calls: Ranks with calls.
    """
    missing = sorted({*(wanted or ())}.difference(with_calls))
    return [f"--ranks: {name_ranks(missing)} {have(missing)} no calls here"] if missing else []


def steps_of(text: str) -> tuple[int, int] | None:
    """Return the first and last step in `--steps`, such as `100-110`; None if the option is not given.

    Raises:
        typer.BadParameter: The text is neither a step nor a range of steps.
    """
    if not text:
        return None
    match = _STEPS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
    if first > last:
        raise typer.BadParameter(
            f"{text!r}: expected a step or a range of steps, such as 100-110", param_hint="--steps"
        )
    return first, last


def warn(lines: Iterable[str]) -> None:
    """Print warnings, one line each: line breaks in file names are escaped."""
    for line in lines:
        typer.echo(f"otel-torchdist: warning: {readable(line, MAX_LINE)}", err=True)
