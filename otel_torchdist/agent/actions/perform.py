"""Performs one action on a stall or a finding, once, and logs its outcome."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from otel_torchdist.agent.actions.dump import dump
from otel_torchdist.agent.actions.requests import abort_ranks
from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.config import Action, ActionKind
from otel_torchdist.system.files.owned import create_anew
from otel_torchdist.system.this_process.abandoned_calls import BACKGROUND_CALLS

_logger = logging.getLogger("otel_torchdist")

Callback: TypeAlias = Callable[[StalledRun], object]
Act: TypeAlias = Callable[[], str]


def perform(action: Action, stall: StalledRun, dump_dir: Path, is_ongoing: Callable[[], bool]) -> str:
    """Perform an action; return the outcome as text.

    Args:
        action: The action.
        stall: The stall, or the finding.
        dump_dir: Directory for bundles of evidence.
        is_ongoing: Returns whether the stall is still ongoing; else `abort` ends no ranks.

    Raises:
        Exception: The user's function or the action failed.
    """
    if action.kind is ActionKind.DUMP:
        return dump(stall, dump_dir, os.environ)
    if action.kind is ActionKind.ABORT:
        return abort_ranks(stall, is_ongoing)
    if action.kind is ActionKind.COMMAND:
        return run_command(action.target, stall)
    module, _, name = action.target.partition(":")
    return call(getattr(importlib.import_module(module), name), stall)


def call(callback: Callback, stall: StalledRun) -> str:
    """Call a function of the user; return the outcome as text."""
    with BACKGROUND_CALLS:  # the function may still be in a call of torch when this process ends
        callback(stall)
    return "returned"


def is_first(stall: StalledRun, action: str) -> bool:
    """Return whether no agent has started this action for this stall on this node before; marks it as started."""
    mark = stall.directory / f"acted-{stall.trace_id}-{action}"
    with contextlib.suppress(OSError):
        if mark.exists():
            return False
        os.close(create_anew(mark))
    return True


def report(occasion: str, action: str, act: Act) -> None:
    """Call `act` and log its outcome. A failure is logged too, so that later actions still run."""
    try:
        _logger.warning("%s: %s %s", occasion, action, act())
    except Exception as error:  # from the user's code or from ours
        _logger.warning("%s: %s failed: %s: %s", occasion, action, type(error).__name__, error)


# --- commands ---------------------------------------------------------------------------------------------------------
# Runs a user's command. It receives the stall in its environment and on its standard input.


TIMEOUT_S: Final = 60.0
_SHOWN_BYTES: Final = 500


def run_command(command: str, stall: StalledRun, timeout_s: float = TIMEOUT_S) -> str:
    """Run the command, without a shell, and kill it after `timeout_s`; return the outcome as text.

    Raises:
        OSError: The command cannot be started.
        ValueError: Its quotes do not match.
    """
    with tempfile.TemporaryFile() as document, tempfile.TemporaryFile() as output:
        document.write(stall.to_json().encode())
        document.seek(0)
        process = subprocess.Popen(
            shlex.split(command),
            env=os.environ | stall.to_environment(),
            stdin=document,
            stdout=output,  # a file: children of the command could hold a pipe open forever
            stderr=subprocess.STDOUT,
            start_new_session=True,  # lets `killpg` kill its children too
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {timeout_s:g} s and was killed"
        output.seek(max(output.seek(0, os.SEEK_END) - _SHOWN_BYTES, 0))
        shown = output.read().decode(errors="replace").strip()
    return f"exited with code {process.returncode}" + (f": {shown}" if shown else "")
