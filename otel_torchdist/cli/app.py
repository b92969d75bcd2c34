"""The commands of `otel-torchdist`."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from otel_torchdist.cli.advice.command import advice
from otel_torchdist.cli.agent import agent
from otel_torchdist.cli.critical_path.command import critical_path
from otel_torchdist.cli.demo.command import demo
from otel_torchdist.cli.diagnose.command import diagnose
from otel_torchdist.cli.exit_codes import ExitCode, exit_codes_help
from otel_torchdist.cli.export.command import export
from otel_torchdist.cli.graph.command import graph
from otel_torchdist.cli.import_dumps import import_dumps
from otel_torchdist.cli.report.command import report
from otel_torchdist.cli.reproduce.command import reproduce
from otel_torchdist.cli.stats.command import stats
from otel_torchdist.cli.watch.command import watch


class _Commands(TyperGroup):
    """The commands, ending with our own exit codes where Typer's mean something else in our table."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # for Typer this is 1
            raise typer.Exit(ExitCode.BROKEN_PIPE) from error


def _give_usage_errors_their_code() -> None:
    """Replace Typer's exit code for an invalid command line, 2, also where no command has been found yet."""
    for kind in typer.BadParameter.__mro__:
        if kind.__name__ == "UsageError":
            kind.exit_code = ExitCode.USAGE_ERROR


_give_usage_errors_their_code()
app = typer.Typer(
    cls=_Commands,
    help="OpenTelemetry for torch.distributed: which rank holds the job up, since when, and where in its code.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
# In the order in which people need them: `--help` keeps it.
app.command(
    epilog=exit_codes_help(
        ExitCode.DEMO_FAILED,
        ExitCode.UNAVAILABLE,
        ExitCode.NO_DIRECTORY,
        ExitCode.NOT_WRITTEN,
        ExitCode.HUNG_UP,
        ExitCode.INTERRUPTED,
        ExitCode.BROKEN_PIPE,
        ExitCode.TERMINATED,
    )
)(demo)
app.command(epilog=exit_codes_help(ExitCode.NOTHING_FOUND, ExitCode.BROKEN_PIPE))(watch)
app.command(
    epilog=exit_codes_help(
        ExitCode.PROBLEM,
        ExitCode.NOTHING_FOUND,
        ExitCode.INTERRUPTED,
        ExitCode.BROKEN_PIPE,
    )
)(diagnose)
app.command(epilog=exit_codes_help(ExitCode.NOTHING_FOUND, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE))(stats)
app.command(epilog=exit_codes_help(ExitCode.NOTHING_FOUND, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE))(graph)
app.command(epilog=exit_codes_help(ExitCode.NOTHING_FOUND, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE))(critical_path)
app.command(epilog=exit_codes_help(ExitCode.NOTHING_FOUND, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE))(advice)
app.command(
    epilog=exit_codes_help(
        ExitCode.NOTHING_FOUND,
        ExitCode.NO_DIRECTORY,
        ExitCode.NOT_WRITTEN,
        ExitCode.INTERRUPTED,
        ExitCode.BROKEN_PIPE,
    )
)(report)
app.command(
    "import",
    epilog=exit_codes_help(
        ExitCode.NOTHING_FOUND,
        ExitCode.NOT_WRITTEN,
        ExitCode.NOT_SENT,
        ExitCode.INTERRUPTED,
        ExitCode.BROKEN_PIPE,
    ),
)(import_dumps)
app.command(
    epilog=exit_codes_help(
        ExitCode.NOTHING_FOUND,
        ExitCode.UNAVAILABLE,
        ExitCode.NO_DIRECTORY,
        ExitCode.NOT_WRITTEN,
        ExitCode.INTERRUPTED,
        ExitCode.BROKEN_PIPE,
    )
)(export)
app.command(
    epilog=exit_codes_help(
        ExitCode.NOTHING_FOUND, ExitCode.NOT_REPRODUCIBLE, ExitCode.NO_DIRECTORY, ExitCode.BROKEN_PIPE
    )
)(reproduce)
app.command(epilog=exit_codes_help(ExitCode.NOTHING_FOUND))(agent)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"otel-torchdist {version('otel-torchdist')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before a command."""
