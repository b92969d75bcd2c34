"""How a command ends when it cannot go on."""

from __future__ import annotations

from typing import NoReturn

import typer


def fail(message: str, code: int = 1) -> NoReturn:
    """Print one line on stderr and end with an exit code."""
    typer.echo(f"otel-torchdist: {message}", err=True)
    raise typer.Exit(code)
