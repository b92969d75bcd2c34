"""What Python tells the native library about one run: its groups, its code, and how calls are recorded."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import MutableSequence
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.native.library import FAILURES, Library

if TYPE_CHECKING:
    from otel_torchdist.native.tape_writer import NativeTapeWriter


_ALL_FORGOTTEN: Final = 2
"""The library had too many plans, and has forgotten all others of the thread."""


class PlanFlag(enum.IntFlag):
    """How a planned call is recorded; see `otd_plan` in source/control.cc."""

    LEFT_ALONE = 1
    CALLBACK = 2
    MAPS_MEMORY = 4
    SYNCHRONIZING = 8


class NativeGroup:
    """A process group in the library."""

    def __init__(self, library: Library, handle: int) -> None:
        self._library = library
        self.handle = handle

    def set_default(self) -> None:
        """Make it the default group."""
        self._library.set_default(self.handle)

    def set_coalescing(self, is_coalescing: bool) -> None:
        """Leave its calls to Python while several of them end together."""
        self._library.set_coalescing(self.handle, is_coalescing)

    def is_synchronized(self) -> bool:
        """Whether a collective has ended that proves that every member was there."""
        return bool(self._library.is_synchronized(self.handle))


class NativeRecording:
    """Controls what the library records on one tape.

    Attributes:
        generation: Counts how often all plans have become void, from 1.
    """

    def __init__(self, tape: NativeTapeWriter) -> None:
        """Prepare; `begin` starts it."""
        self._tape = tape
        self._library = tape.library
        self._session = tape.session
        self.generation = 1

    def begin(self, window: int) -> None:
        """Start recording; every `window` collectives of the default group are a step, which Python ends."""
        failures = (ctypes.c_uint32 * len(FAILURES))(*map(self._tape.names.intern, FAILURES))
        self._library.begin(self._session, window, failures)

    def end(self) -> None:
        """Stop recording; ends of operations are still recorded."""
        self._library.end(self._session)

    def stop_windows(self) -> None:
        """From now on, steps end in other ways."""
        self._library.stop_windows(self._session)

    def add_group(self, has_one_channel: bool) -> NativeGroup:
        """Add a process group."""
        return NativeGroup(self._library, self._library.add_group(self._session, has_one_channel))

    def new_counter(self) -> MutableSequence[int]:
        """A number in the library's memory, which lives as long as the tape."""
        number: Any = ctypes.c_int64.from_address(self._library.add_channel(self._session))
        counter: Any = memoryview(number).cast("B").cast("q")
        return counter

    def learn_code(self, code: int, is_library: bool) -> None:
        """Note whether a code object belongs to a library."""
        self._library.learn_code(self._session, code, is_library)

    def forget_code(self) -> None:
        """Forget all code objects, whose addresses may be used again."""
        self._library.forget_code(self._session)
        self.generation += 1

    def void_plans(self) -> None:
        """Plan all calls anew."""
        self._library.void_plans(self._session)
        self.generation += 1

    def plan(self, group: NativeGroup | None, counter: Any, tail: bytes, kind: int, flags: PlanFlag) -> bool:
        """Say how calls like this thread's last one are recorded; returns whether the library takes it.

        Args:
            group: Their group; None to leave them to Python.
            counter: What `new_counter` returned for their channel.
            tail: The constant part of their records.
            kind: Comes back with a wait that raises.
            flags: See `PlanFlag`.
        """
        address = ctypes.addressof(ctypes.c_int64.from_buffer(counter)) if group is not None else None
        handle = group.handle if group is not None else None
        answer = self._library.plan(self._session, handle, address, tail, kind, flags)
        if answer == _ALL_FORGOTTEN:
            self.generation += 1
        return bool(answer)
