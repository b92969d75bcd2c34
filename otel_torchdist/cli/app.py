"""The commands of `otel-torchdist`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from otel_torchdist.cli.exit_codes import ExitCode, exit_codes_help
from otel_torchdist.cli.output.progress import showing_progress
from otel_torchdist.errors import RunError
from otel_torchdist.system.this_process.commands import freezing_imports


@dataclass(frozen=True)
class _Command:
    """A command and the module that implements it.

    Attributes:
        name: As on the command line.
        module: Below `otel_torchdist.cli`. Imported when the command is used: importing all commands takes more than a
            second.
        function: Name of the function in `module`.
        exit_codes: The exit codes that this command adds to the shared ones.
    """

    name: str
    module: str
    function: str
    exit_codes: tuple[ExitCode, ...]

    def load(self) -> Any:
        """Import the command's function and convert it to a Typer command."""
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
        with freezing_imports():
            function = getattr(import_module(f"otel_torchdist.cli.{self.module}"), self.function)
        app.command(self.name, epilog=exit_codes_help(*self.exit_codes))(function)
        return typer.main.get_command(app)


_PRINTING_CODES: Final = (ExitCode.NOTHING_FOUND, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE)
"""Exit codes of commands that write to standard output."""
_WRITING_CODES: Final = (*_PRINTING_CODES, ExitCode.NO_DIRECTORY, ExitCode.NOT_WRITTEN)
"""Exit codes of commands that write files."""
_DEMO_CODES: Final = (
    *(ExitCode.DEMO_FAILED, ExitCode.UNAVAILABLE, ExitCode.NO_DIRECTORY, ExitCode.NOT_WRITTEN, ExitCode.HUNG_UP),
    *(ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE, ExitCode.TERMINATED),
)
_SERVING_CODES: Final = (
    *(ExitCode.UNAVAILABLE, ExitCode.HUNG_UP, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE, ExitCode.TERMINATED),
)
# In the order in which a new user needs them; `--help` keeps the order.
_COMMANDS: Final = {
    command.name: command
    for command in (
        _Command("demo", "demo.command", "demo", _DEMO_CODES),
        _Command("watch", "watch.command", "watch", (ExitCode.NOTHING_FOUND, ExitCode.BROKEN_PIPE)),
        _Command("diagnose", "diagnose.command", "diagnose", (ExitCode.PROBLEM, *_PRINTING_CODES)),
        _Command("profile", "profile.command", "profile", (*_PRINTING_CODES, ExitCode.NOT_WRITTEN)),
        _Command("analyze", "analyze.command", "analyze", _WRITING_CODES),
        _Command("export", "export.command", "export", (*_WRITING_CODES, ExitCode.UNAVAILABLE, ExitCode.NOT_SENT)),
        _Command(
            "reproduce",
            "reproduce",
            "reproduce",
            (ExitCode.NOTHING_FOUND, ExitCode.NOT_REPRODUCIBLE, ExitCode.NO_DIRECTORY, ExitCode.BROKEN_PIPE),
        ),
        _Command("agent", "agent", "agent", (ExitCode.NOTHING_FOUND,)),
        _Command("mcp", "mcp.command", "mcp", _SERVING_CODES),
        _Command(
            "build-native",
            "build_native",
            "build_native",
            (ExitCode.NOT_BUILT, ExitCode.UNAVAILABLE, ExitCode.NOT_WRITTEN, ExitCode.INTERRUPTED),
        ),
    )
}


class _Commands(TyperGroup):
    """The group of all commands, loaded on demand, with our exit codes in place of Typer's."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None."""
        if cmd_name in _COMMANDS:
            return self.commands.get(cmd_name) or self.commands.setdefault(cmd_name, _COMMANDS[cmd_name].load())
        for name in _COMMANDS:  # Typer suggests similar names only among commands that are loaded
            self.get_command(ctx, name)
        return None

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with showing_progress():
                return super().invoke(ctx)
        except RunError as error:
            from otel_torchdist.cli.output.text import fail  # most commands end without an error
            from otel_torchdist.cli.targets import warn

            warn(error.warnings)
            fail(str(error), ExitCode.NOTHING_FOUND)
        except BrokenPipeError as error:  # Typer would exit with 1
            raise typer.Exit(ExitCode.BROKEN_PIPE) from error


def _set_exit_code_of_usage_errors() -> None:
    """Replace Typer's exit code for an invalid command line, 2.

    Typer does not export its `UsageError`, the base class of `BadParameter` and of the error for an unknown command.
    """
    for kind in typer.BadParameter.__mro__:
        if kind.__name__ == "UsageError":
            kind.exit_code = ExitCode.USAGE_ERROR


_set_exit_code_of_usage_errors()
app = typer.Typer(
    cls=_Commands,
    help="OpenTelemetry for torch.distributed: which rank holds the job up, since when, and where in its code.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"otel-torchdist {metadata.version('otel-torchdist')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Parse the options that precede a command."""
