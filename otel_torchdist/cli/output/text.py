"""Formats of paths and the fates of ranks, and the message of a command that fails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

import typer

from otel_torchdist.cli.exit_codes import ExitCode
from otel_torchdist.cli.output.progress import hide_progress
from otel_torchdist.judge.verdict.wording.ends import describe_death
from otel_torchdist.model.kinds import Kernel
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.model.snapshot import RankView, life_in
from otel_torchdist.model.text import name_ranks, readable
from otel_torchdist.tape.identity import TapeIdentity, ranks_by_recorder

MAX_LINE: Final = 65_536
"""Upper bound on the characters of a message, which may contain file names. Longer than any of our messages."""


def shown_callers(path: Sequence[str]) -> str:
    """Format the call path of a call site, without the site itself: `train.py:80 main ← … torch …`."""
    return " ← ".join(path[1:])


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
    groups: dict[tuple[RankLife, str, str], list[int]] = {}
    for view in views:
        life = life_in(view)
        ending = describe_death(view.death) if life is RankLife.DEAD else ""
        if view.switched_off_ns:
            ending = "was recorded until recording was switched off"
        groups.setdefault((life, ending, view.failure or _exit_code(view)), []).append(view.rank)
    return [
        f"{name_ranks(sorted(ranks))} {_fate(life, ending, failure, len(ranks) > 1)}"
        for (life, ending, failure), ranks in groups.items()
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
    by_recorder = ranks_by_recorder(identities)
    clauses = [f"{_KERNELS[kernel]}, torch {torch or 'unknown'}" for kernel, torch in by_recorder]
    if len(clauses) == 1:
        return f"recorded {clauses[0]}" if (Kernel.UNKNOWN, "") not in by_recorder else ""
    named = [f"{name_ranks(ranks)} {clause}" for clause, ranks in zip(clauses, by_recorder.values(), strict=True)]
    return f"recorded differently: {'; '.join(named)}" if named else ""
