"""Performs one action: whatever it is about, once, and with its outcome in the log."""

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


def perform(action: Action, stall: StalledRun, dump_dir: Path, is_on: Callable[[], bool]) -> str:
    """Perform an action; returns the outcome as text.

    Args:
        action: The action.
        stall: What it is about.
        dump_dir: Where bundles of evidence go.
        is_on: Whether there still is a reason to end ranks.

    Raises:
        Exception: Whatever the user's function raises, or what the action failed with.
    """
    if action.kind is ActionKind.DUMP:
        return dump(stall, dump_dir, os.environ)
    if action.kind is ActionKind.ABORT:
        return abort_ranks(stall, is_on)
    if action.kind is ActionKind.COMMAND:
        return run_command(action.target, stall)
    module, _, name = action.target.partition(":")
    return called(getattr(importlib.import_module(module), name), stall)


def called(callback: Callback, stall: StalledRun) -> str:
    """Call a function; returns the outcome as text."""
    with BACKGROUND_CALLS:  # it may be in torch when this process ends
        callback(stall)
    return "returned"


def is_first(stall: StalledRun, what: str) -> bool:
    """Whether this action has not yet run for this stall on this node, even by an agent that was killed."""
    mark = stall.directory / f"acted-{stall.trace_id}-{what}"
    with contextlib.suppress(OSError):
        if mark.exists():
            return False
        os.close(create_anew(mark))
    return True


def report(when: str, what: str, act: Act) -> None:
    """Perform something and log its outcome; when it fails, what comes next runs all the same."""
    try:
        _logger.warning("%s: %s %s", when, what, act())
    except Exception as error:  # from users' code or from ours
        _logger.warning("%s: %s failed: %s: %s", when, what, type(error).__name__, error)


# --- commands ---------------------------------------------------------------------------------------------------------
# Runs a user's command, with the stall in its environment and on its standard input.


TIMEOUT_S: Final = 60.0
_SHOWN: Final = 500


def run_command(command: str, stall: StalledRun, timeout_s: float = TIMEOUT_S) -> str:
    """Run the command, without a shell; after `timeout_s` it is killed. Returns the outcome as text.

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
            stdout=output,  # a file, because its children may hold a pipe open forever
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to kill it along with its children
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {timeout_s:g} s and was killed"
        output.seek(max(output.seek(0, os.SEEK_END) - _SHOWN, 0))
        shown = output.read().decode(errors="replace").strip()
    return f"exited with code {process.returncode}" + (f": {shown}" if shown else "")
