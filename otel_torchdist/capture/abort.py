"""Ends this rank when the agent says so: with a word to torchelastic, and no call into torch, which may block."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from otel_torchdist.capture.stacks import current_stacks
from otel_torchdist.tape.abort import EXIT_CODE, FAILURE, abort_reason

ERROR_FILE: Final = "TORCHELASTIC_ERROR_FILE"

_logger = logging.getLogger("otel_torchdist")


def abort_if_asked(tape: Path, finish: Callable[[], None]) -> None:
    """End this process if somebody asked for it.

    Args:
        tape: This rank's.
        finish: Writes the last word on it.
    """
    reason = abort_reason(tape)
    if not reason:
        return
    # First what matters most: the thread that hangs may hold the lock of a logging handler.
    for tell in (lambda: _tell_launcher(reason, os.environ), finish):
        with contextlib.suppress(Exception):
            tell()
    with contextlib.suppress(Exception):
        _logger.error("this rank ends with exit code %d because of a stall: %s", EXIT_CODE, reason)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # Not sys.exit: what runs at exit may wait for the very operation that hangs.
    os._exit(EXIT_CODE)


def _tell_launcher(reason: str, environ: Mapping[str, str]) -> None:
    """Write the file that torchelastic takes for the cause, as `@record` does; of it, the call stack is shown."""
    path = environ.get(ERROR_FILE, "")
    if not path:
        return
    stacks = "\n".join(
        f"{frame.file}:{frame.line} {frame.function}" for stack in current_stacks()[:1] for frame in stack.frames
    )
    said = f"{FAILURE}: {reason}"
    more = {"py_callstack": f"{said}\nThis rank was in\n{stacks}", "timestamp": str(int(time.time()))}
    Path(path).write_text(json.dumps({"message": {"message": said, "extraInfo": more}}))
