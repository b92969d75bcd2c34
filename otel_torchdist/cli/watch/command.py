"""`otel-torchdist watch`: its options, and how it ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from otel_torchdist.agent.stop_signals import StopSignals
from otel_torchdist.cli.completion import complete_run
from otel_torchdist.cli.failing import fail
from otel_torchdist.cli.runs import SeveralRunsError
from otel_torchdist.cli.switched_off import with_reasons
from otel_torchdist.cli.watch.finding import Found, Wanted, wait_for
from otel_torchdist.cli.watch.live_view import LiveView
from otel_torchdist.cli.watch.passive import PassiveWatch
from otel_torchdist.cli.watch.picture import View
from otel_torchdist.cli.watch.plain_view import PlainView
from otel_torchdist.cli.watch.session import WatchSession
from otel_torchdist.config import Config
from otel_torchdist.errors import TapeError


def watch(
    run: Annotated[
        str,
        typer.Argument(
            help="The first digits of the run's id. Without it: the job in which a rank began last.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, resolve_path=True, help="The job directory."),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first rank.")] = 60.0,
    keep: Annotated[
        float, typer.Option(min=0, help="Seconds to stay after ranks have failed, for they may be started again.")
    ] = 10.0,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Seconds for which an operation is open before it counts as stalled. "
            "Without it: as in OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT, else 10.",
        ),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a table, as without a terminal.")] = False,
) -> None:
    """Show what the ranks of a running job on this node are doing, and who holds them up.

    It only reads tapes: it may run beside an agent, beside readers in the ranks and beside others of its kind.
    Ctrl-C ends it, with exit code 0.
    """
    config = Config.from_environment()
    threshold_s = config.stall_timeout if threshold is None else threshold
    console = Console(highlight=False)
    with StopSignals() as stop:
        try:
            found = _find(Wanted(run, run_dir, config.tape_dir), config, wait, stop, console)
            if found is None:
                return
            passive = PassiveWatch(found.directory, threshold_s, found.run_id, config.stall_ignore)
            with contextlib.closing(passive), _view(console, found.directory, plain) as view:
                WatchSession(found.directory, passive, view, threshold_s, keep).run(stop)
        except OSError:  # the terminal is gone, and says so by a signal
            if stop.received is None:
                raise


def _find(wanted: Wanted, config: Config, wait_s: float, stop: StopSignals, console: Console) -> Found | None:
    """The job; None when a signal ended the wait."""

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    try:
        found = wait_for(wanted, config, wait_s, stop, say)
    except (TapeError, SeveralRunsError) as error:
        fail(str(error))
    if found is None and stop.received is None:
        fail(with_reasons(f"{wanted} within {wait_s:g} s", os.environ, config))
    return found


def _view(console: Console, directory: Path, plain: bool) -> View:
    is_live = console.is_terminal and not console.is_dumb_terminal and not plain
    return LiveView(console, directory) if is_live else PlainView(console)
