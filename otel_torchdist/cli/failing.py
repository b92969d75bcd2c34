"""How a command ends when it cannot go on.

A usage error and a defect of ours have exit codes of their own (those of `sysexits.h`), so that a script can tell them
from what a command has found.
"""

from __future__ import annotations

from typing import Final, NoReturn

import typer

USAGE_ERROR: Final = 64
"""The command line itself is wrong."""
INTERNAL_ERROR: Final = 70
"""A defect of ours; the traceback is on stderr."""


def fail(message: str, code: int = 1) -> NoReturn:
    """Print one line on stderr and end with an exit code."""
    typer.echo(f"otel-torchdist: {message}", err=True)
    raise typer.Exit(code)


def give_usage_errors_their_code() -> None:
    """Typer's own is 2, which says of `diagnose` that there is nothing to diagnose."""
    for kind in typer.BadParameter.__mro__:
        if kind.__name__ == "UsageError":
            kind.exit_code = USAGE_ERROR
