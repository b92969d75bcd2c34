"""Handles the early end of a rank: because the agent requests it, or because its backend aborts.

On the agent's request, the rank reports the reason to torchelastic and makes no call into torch, which may block.

nccl2 has an abort hook from torch 2.15 on. It runs on the backend's thread, possibly several times, and may be the last
Python code of the process. The hook only stores one word on the tape. It needs the GIL, so it is optional.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.requests.stacks import current_stacks
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.names import GIVEN_UP
from otel_torchdist.node.job.requests.commands import EXIT_CODE, FAILURE, abort_reason

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder

ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"

_logger = logging.getLogger("otel_torchdist")


def abort_if_requested(tape: Path, finish: Callable[[], None]) -> None:
    """End this process if the agent has requested it.

    Args:
        tape: This rank's tape.
        finish: Writes the final state to the tape.
    """
    reason = abort_reason(tape)
    if not reason:
        return
    # Most important first: the hanging thread may hold the lock of a logging handler.
    for report in (lambda: _write_error_file(reason, os.environ), finish):
        with contextlib.suppress(Exception):
            report()
    with contextlib.suppress(Exception):
        _logger.error("this rank exits with code %d because of a stall: %s", EXIT_CODE, reason)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # Not sys.exit: exit handlers may wait for the hanging operation.
    os._exit(EXIT_CODE)


def _write_error_file(reason: str, environ: Mapping[str, str]) -> None:
    """Write torchelastic's error file, as `@record` does; torchelastic displays the call stack in it."""
    path = environ.get(ERROR_FILE, "")
    if not path:
        return
    stacks = "\n".join(
        f"{frame.file}:{frame.line} {frame.function}" for stack in current_stacks()[:1] for frame in stack.frames
    )
    message = f"{FAILURE}: {reason}"
    extra_info = {"py_callstack": f"{message}\nThis rank was in\n{stacks}", "timestamp": str(int(time.time()))}
    temporary = Path(f"{path}.{os.getpid()}")  # torchelastic may read it at any time, or end this process meanwhile
    temporary.write_text(json.dumps({"message": {"message": message, "extraInfo": extra_info}}))
    temporary.replace(path)


HOOK: Final = 0x07E1_70C4
"""Id of our hook in a group. torch's ids start at 0."""


class AbortHooks(SessionPart):
    """The abort hooks of all groups."""

    def __init__(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._groups: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()

    def attach(self, recorder: Recorder, group: ProcessGroup) -> None:
        """Install the abort hook in a group's backend, if hooks are wanted and supported."""
        if not self._is_wanted or group in self._groups:
            return
        with guard.guarded("abort hook"):
            if _supports_hooks(group):
                core.ADD_ABORT_HOOK.of(group)(HOOK, _hook(recorder))
                self._groups.add(group)

    def ends(self, recorder: Recorder) -> None:
        """Remove all hooks. A backend may outlive the interpreter and must not hold a Python function."""
        groups: list[Any] = list(self._groups)
        self._groups.clear()
        for group in groups:
            with guard.guarded("abort hook"):
                core.REMOVE_ABORT_HOOK.of(group)(HOOK)


def _supports_hooks(group: ProcessGroup) -> bool:
    try:
        return bool(core.SUPPORTS_ABORT_HOOKS.of(group, False))
    except RuntimeError as error:  # the group has no backend yet
        guard.pass_on(error)
        return False


def _hook(recorder: Recorder) -> Callable[[], None]:
    name = recorder.tape.names.intern(GIVEN_UP)  # in advance: the hook must not write to a file
    announce_failure = recorder.tape.announce_failure

    def hook() -> None:
        try:
            announce_failure(name)
        except Exception as error:
            guard.report("abort hook", error)

    return hook
