"""How an exception that ended an operation is recorded: by its type, and by what its message blames.

A backend that gives up waiting, or loses a connection, raises because of another rank. Its type does not say so: gloo
raises `RuntimeError` for all of it.
"""

from __future__ import annotations

from typing import Any, Final

from otel_torchdist.model.kinds import Blame
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
