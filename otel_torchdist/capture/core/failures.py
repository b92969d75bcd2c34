"""Describes exceptions for records, and hides our frames in tracebacks.

A backend that times out or loses a connection raises because of another rank. The type does not show that: gloo raises
`RuntimeError` for everything. So a record also holds the cause that the message blames.
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
"""Exceptions of torch's backends and stores. Messages of other types are not read: that may run any code."""
TIMEOUT: Final = ("Timed out", "timed out", "timeout", "failed to pass monitoredBarrier")
CONNECTION: Final = ("Connection closed", "onnection reset", "Broken pipe", "Socket closed", "remote process exited")
"""Phrases in messages of gloo, NCCL and torch's stores; as in native/source/completion.cc."""
REFUSED: Final = "onnection refused"
"""Phrase in gloo's messages if a peer does not listen at its address. These messages also mention a timeout, so
this phrase is looked for first."""
TAKEN: Final = "EADDRINUSE"
"""Phrase in the message of a store that cannot bind its port: another process uses it."""
MAX_MESSAGE: Final = 2000


def failure_word(names: NamesWriter, error: BaseException) -> int:
    """Pack an exception's type and the cause that it blames into a word of the tape; see `pack_failure`."""
    return pack_failure(names.intern(type(error).__qualname__), blame_of(error))


def blame_of(error: BaseException) -> Blame:
    """Return the cause that the message of one of torch's exceptions blames."""
    argument: Any = error.args[0] if type(error).__qualname__ in _TYPES and error.args else None
    if type(argument) is not str:
        return Blame.UNKNOWN
    message = argument[:MAX_MESSAGE]
    if TAKEN in message:
        return Blame.TAKEN
    if REFUSED in message:
        return Blame.CONNECTION
    if any(part in message for part in TIMEOUT):
        return Blame.TIMEOUT
    return Blame.CONNECTION if any(part in message for part in CONNECTION) else Blame.UNKNOWN


MAX_SHOWN: Final = 160


def describe_raised(error: BaseException) -> RaisedName:
    """Describe an exception. The message is empty if the exception has none, or if `str` raises."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)][::-1]
    index = innermost((code.co_filename, code.co_name) for code, _ in frames)
    kind = type(error).__qualname__
    if index is None:
        return RaisedName(kind, _first_line(error))
    site = site_of(*frames[index])
    return RaisedName(kind, _first_line(error), site.function, site.file, site.line)


def _first_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # a `__str__` of the program
        return ""
    return text.strip().partition("\n")[0].rstrip(" .:")[:MAX_SHOWN]


def hide_frame(error: BaseException) -> None:
    """Remove the frame that has just caught an exception from its traceback. A bare `raise` must follow.

    A bare `raise` does not add the frame again. Python 3.10 stores the traceback elsewhere, and shows the frame.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
