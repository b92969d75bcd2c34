"""The commands of `otel-torchdist`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from otel_torchdist.cli.agent import agent
from otel_torchdist.cli.demo.command import demo
from otel_torchdist.cli.diagnose.command import diagnose
from otel_torchdist.cli.text import give_usage_errors_their_code
from otel_torchdist.cli.watch.command import watch

app = typer.Typer(
    help="OpenTelemetry for torch.distributed: which rank holds the job up, since when, and where in its code.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
give_usage_errors_their_code()
app.command()(agent)
app.command()(demo)
app.command()(diagnose)
app.command()(watch)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"otel-torchdist {version('otel-torchdist')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before a command."""
