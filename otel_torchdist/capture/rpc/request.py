"""What a request carries from a caller to the worker that runs the function, behind the pickle.

An unpickler stops at the end of the pickle, so a worker without us does not notice. Readers make the caller's trace
and span from these numbers, so that capture needs no OpenTelemetry, and none of the program's context is read.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

_FORMAT: Final = struct.Struct("<QQQiB7s")
_VERSION: Final = 1
_MAGIC: Final = b"otd-rpc"
MAX_PICKLE: Final = 16 << 20
"""Bytes of a pickle behind which nothing is added, because that copies it; tensors are not part of it."""


class Caller(NamedTuple):
    """A caller's side of a call.

    Attributes:
        nonce: Nonce of its tape.
        number: Number of its record.
        step: Its step.
        worker: Its id.
    """

    nonce: int
    number: int
    step: int
    worker: int

    def encode(self) -> bytes:
        """Pack it."""
        return _FORMAT.pack(*self, _VERSION, _MAGIC)


def caller_in(request: bytes) -> Caller | None:
    """Return who has sent a request; None if the caller is not recorded, or by another version."""
    if not request.endswith(_MAGIC) or len(request) < _FORMAT.size:
        return None
    *caller, version, _ = _FORMAT.unpack_from(request, len(request) - _FORMAT.size)
    return Caller(*caller) if version == _VERSION else None
