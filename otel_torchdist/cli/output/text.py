"""Formats of times, paths and the fates of ranks, and the message of a command that fails."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, NoReturn

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.progress import hide_progress
from otel_torchdist.judge.verdict.wording.ends import describe_way
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.model.lives import RankLife
from otel_torchdist.model.naming import name_ranks, readable
from otel_torchdist.model.snapshot import RankView, life_in
from otel_torchdist.model.units import passed
from otel_torchdist.tape.identity import TapeIdentity

MAX_LINE: Final = 65_536
"""Upper bound on the characters of a message, which may contain file names. Longer than any of our messages."""


def day_and_time(wall_ns: int) -> str:
    """Format a time as `2026-11-21 12:46:05`, local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns // 1_000_000_000))


def time_of_day(wall_ns: int) -> str:
    """Format a time as `12:46:05.1`, local time."""
    tenths = wall_ns // 100_000_000
    return f"{time.strftime('%H:%M:%S', time.localtime(tenths // 10))}.{tenths % 10}"


def iso_time(wall_ns: int) -> str:
    """Format a time as `2026-11-21T12:46:05.123456Z`."""
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ns // 1000 % 1_000_000:06d}Z"


def shown_callers(path: Sequence[str]) -> str:
    """Format the call path of a call site, without the site itself: `train.py:80 main ← … torch …`."""
    return " ← ".join(path[1:])


def length(seconds: float) -> str:
    """Format a duration as `12 ms`, `8.1 s`, `2 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    seconds = passed(seconds)
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {smaller_unit}"
    return f"{whole} s"


def shown(path: Path | str) -> str:
    """Return a path relative to the current directory if it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def fail(message: str, code: ExitCode) -> NoReturn:
    """Print an error message on stderr, usually one line, and exit."""
    hide_progress()
    lines = (readable(line, MAX_LINE) for line in message.split("\n"))
    typer.echo("\n".join(["otel-torchdist: " + next(lines), *lines]), err=True)
    raise typer.Exit(code)


_FATES: Final = {
    RankLife.RUNNING: ("is running", "are running"),
    RankLife.FINISHED: ("has finished", "have finished"),
    RankLife.FAILED: ("has failed", "have failed"),
    RankLife.DEAD: ("is dead: its process is gone without a word", "are dead: their processes are gone without a word"),
}


def fates(views: Iterable[RankView]) -> list[str]:
    """Return a clause for each group of ranks with the same fate: `ranks 0-2 have failed with RuntimeError`."""
    crowds: dict[tuple[RankLife, str, str], list[int]] = {}
    for view in views:
        life = life_in(view)
        ending = describe_way(view.death) if life is RankLife.DEAD else ""
        crowds.setdefault((life, ending, view.failure or _exit_code(view)), []).append(view.rank)
    return [
        f"{name_ranks(sorted(ranks))} {_fate(life, ending, failure, len(ranks) > 1)}"
        for (life, ending, failure), ranks in crowds.items()
    ]


def _fate(life: RankLife, ending: str, failure: str, are_several: bool) -> str:
    if ending:
        return ending.replace("was ", "were ", 1) if are_several else ending
    return f"{_FATES[life][are_several]}{f' with {failure}' if failure else ''}"


def _exit_code(view: RankView) -> str:
    """Format as `exit code 3`; '' for a rank that finished well, or whose end is described otherwise."""
    return f"exit code {view.exit_code}" if view.exited_in_error else ""


_KERNELS: Final = {Kernel.NATIVE: "natively", Kernel.PYTHON: "in Python", Kernel.UNKNOWN: "by an unknown kernel"}


def captured(identities: Iterable[TapeIdentity]) -> str:
    """Describe the recorders of ranks: `recorded natively, torch 2.15.0`; '' if unknown.

    If ranks differ: `recorded differently: ranks 0-2 natively, torch 2.15.0; rank 3 in Python, torch 2.15.0`.
    """
    alike = alike_in_capture(identities)
    clauses = [f"{_KERNELS[kernel]}, torch {torch or 'unknown'}" for kernel, torch in alike]
    if len(clauses) == 1:
        return f"recorded {clauses[0]}" if (Kernel.UNKNOWN, "") not in alike else ""
    named = [f"{name_ranks(ranks)} {clause}" for clause, ranks in zip(clauses, alike.values(), strict=True)]
    return f"recorded differently: {'; '.join(named)}" if named else ""


def alike_in_capture(identities: Iterable[TapeIdentity]) -> dict[tuple[Kernel, str], list[int]]:
    """Group ranks, ascending, by recorder and torch version."""
    alike: dict[tuple[Kernel, str], list[int]] = {}
    for identity in sorted(identities, key=lambda identity: identity.rank):
        alike.setdefault((identity.kernel, identity.torch), []).append(identity.rank)
    return alike
