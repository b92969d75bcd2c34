"""Compressed bodies, each made once for all visitors who get the same."""

from __future__ import annotations

import gzip
import threading
from typing import Final

MAX_KEPT: Final = 8
"""Bodies that are kept; beyond that they are compressed again."""


class PackedBodies:
    """Compresses bodies, one at a time, and keeps the latest of them."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._packing = threading.Lock()
        self._packed: dict[bytes, bytes] = {}

    def of(self, body: bytes) -> bytes:
        """Return a body compressed."""
        with self._packing:
            if body not in self._packed and len(self._packed) >= MAX_KEPT:
                self._packed.clear()
            if body not in self._packed:
                self._packed[body] = gzip.compress(body, compresslevel=1, mtime=0)
            return self._packed[body]

    def forget(self) -> None:
        """Drop what is kept, once there are no visitors any more."""
        with self._packing:
            self._packed.clear()
