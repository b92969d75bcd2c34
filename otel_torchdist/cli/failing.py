"""How a command ends when it cannot go on."""

from __future__ import annotations

from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Print one line on stderr and end with exit code 1."""
    typer.echo(f"otel-torchdist: {message}", err=True)
    raise typer.Exit(1)
