"""Exceptions: what a record says of one that ends an operation or a rank, and how tracebacks hide our frames.

A backend that gives up waiting, or loses a connection, raises because of another rank. Its type does not say so: gloo
raises `RuntimeError` for all of it. So a record also says what the message blames.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

from otel_torchdist.capture.core.call_sites import site_of
from otel_torchdist.model.code_owner import innermost
from otel_torchdist.model.kinds import Blame
from otel_torchdist.model.names import RaisedName
from otel_torchdist.tape.layout import pack_failure
from otel_torchdist.tape.names.writer import NamesWriter

_TYPES: Final = frozenset({"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"})
"""What torch raises for its backends and stores. The messages of others are not looked at: they may run any code."""
TIMEOUT: Final = ("Timed out", "timed out", "timeout", "failed to pass monitoredBarrier")
CONNECTION: Final = ("Connection closed", "onnection reset", "Broken pipe", "Socket closed", "remote process exited")
"""In messages of gloo, NCCL, and torch's stores; as in native/source/completion.cc."""
REFUSED: Final = "onnection refused"
"""In gloo's messages on a peer that is not where the store says; it then speaks of a timeout for its last try."""
TAKEN: Final = "EADDRINUSE"
"""In the message of a store's host."""
MAX_MESSAGE: Final = 2000


def failure_word(names: NamesWriter, error: BaseException) -> int:
    """The word of a failure on the tape: see `pack_failure`."""
    return pack_failure(names.intern(type(error).__qualname__), blame_of(error))


def blame_of(error: BaseException) -> Blame:
    """What the message of an exception of torch's blames."""
    found: Any = error.args[0] if type(error).__qualname__ in _TYPES and error.args else None
    if type(found) is not str:
        return Blame.UNKNOWN
    message = found[:MAX_MESSAGE]
    if TAKEN in message:
        return Blame.TAKEN
    if REFUSED in message:
        return Blame.CONNECTION
    if any(part in message for part in TIMEOUT):
        return Blame.TIMEOUT
    return Blame.CONNECTION if any(part in message for part in CONNECTION) else Blame.UNKNOWN


MAX_SHOWN: Final = 160


def describe_raised(error: BaseException) -> RaisedName:
    """Describe an exception; one that says nothing, or cannot be shown as text, has an empty message."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][::-1]
    place = innermost((code.co_filename, code.co_name) for code, _ in frames)
    kind = type(error).__qualname__
    if place is None:
        return RaisedName(kind, _first_line(error))
    site = site_of(*frames[place])
    return RaisedName(kind, _first_line(error), site.function, site.file, site.line)


def _first_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the program's own method
        return ""
    return text.strip().partition("\n")[0].rstrip(" .:")[:MAX_SHOWN]


def hide_frame(error: BaseException) -> None:
    """Take the frame that has just caught an exception out of its traceback; a bare `raise` must follow.

    That statement does not add the frame again. Python 3.10 keeps the traceback elsewhere, and shows the frame.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
