"""A tape to which C++ and Python write at the same time: all numbers and ends go through the library."""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_torchdist.errors import TapeError
from otel_torchdist.model.names import MAX_BYTES
from otel_torchdist.native.library import Library
from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.writer import TapeWriter

if TYPE_CHECKING:
    from otel_torchdist.tape.identity import TapeIdentity

_OPEN_AT_ONCE: Final = 1024


class NativeTapeWriter(TapeWriter):
    """Writes one rank's tape through the library.

    Attributes:
        library: The library.
        session: Its handle of this tape.
    """

    def __init__(self, library: Library, directory: Path, identity: TapeIdentity, names_bytes: int = MAX_BYTES) -> None:
        """Create the files, and map them for the library too.

        Raises:
            TapeError: There is no room, the files cannot be created, or the identity is invalid.
        """
        super().__init__(directory, identity, names_bytes)
        self.library = library
        self.session: int = library.open(self._lock.fileno(), identity.capacity) or 0
        if not self.session:
            self.close()
            for path in (self.path, self.path.with_suffix(".names")):
                os.unlink(path)
            raise TapeError(f"cannot map {self.path} a second time")
        # In a forked child too: only its own copy of the map goes.
        weakref.finalize(self, library.release, self.session).atexit = False

    def begin_prepared(self, entered_ns: int, step: int, sequence: int, tail: bytes) -> int:
        """Publish an operation; see `TapeWriter`."""
        return self.library.tape_begin(self.session, entered_ns, step, sequence, tail)

    def _append(self, payload: bytes, own_words: bytes) -> int:
        assert own_words == layout.EMPTY_WORDS
        return self.library.tape_append(self.session, payload)

    def begun_at(self, entered_ns: int) -> int:
        """Return the number of the open operation entered at a given time; see `TapeWriter`."""
        return self.library.tape_begun_at(self.session, entered_ns)

    def mark(self, number: int, which: int, elapsed_ns: int, how: int) -> None:
        """Store one of a record's words; see `TapeWriter`."""
        self.library.tape_mark(self.session, number, which, elapsed_ns, how)

    def clear(self, number: int, which: int) -> None:
        """Clear a word stored by `mark`."""
        self.library.tape_clear(self.session, number, which)

    def complete(self, number: int, entered_ns: int, ended_ns: int, how: int, failure: int = 0) -> bool:
        """Record that an operation has ended; see `TapeWriter`."""
        return bool(self.library.tape_complete(self.session, number, entered_ns, ended_ns, how, failure))

    def step_ended(
        self, step: int, ended_ns: int, sequence: int, skipped: bool = False, scale: float | None = None
    ) -> None:
        """Record that `step` has ended; see `TapeWriter`."""
        super().step_ended(step, ended_ns, sequence, skipped, scale)
        self.library.set_step(self.session, step + 1)

    def open_numbers(self) -> list[int]:
        """Return the numbers of the operations that have not ended."""
        size = _OPEN_AT_ONCE
        while True:
            numbers = (ctypes.c_uint64 * size)()
            count = self.library.tape_open(self.session, numbers, size)
            if count <= size:
                return sorted(numbers[:count])
            size = 2 * count

    def add_overhead(self, nanoseconds: int, calls: int) -> None:
        """Add to the estimate of the time spent in our own code."""
        self.library.tape_add(self.session, LiveWord.OVERHEAD_NS, nanoseconds)
        self.library.tape_add(self.session, LiveWord.OVERHEAD_CALLS, calls)

    def drop_record(self) -> None:
        """Count an operation that could not be recorded."""
        self.library.tape_add(self.session, LiveWord.RECORDS_DROPPED, 1)
