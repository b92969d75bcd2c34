"""What Python tells the native library about one run: its groups, its code, and how calls are recorded."""

from __future__ import annotations

import ctypes
import enum
from collections import deque
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_torchdist.native.library import FAILURES, Library
from otel_torchdist.tape import layout

if TYPE_CHECKING:
    from otel_torchdist.native.tape_writer import NativeTapeWriter


_UNUSED: Final = 16_384
"""Forgotten counters that are kept back before the first is used again."""
_ALL_FORGOTTEN: Final = 2
"""The library had too many plans, and has forgotten all others of the thread."""


class PlanFlag(enum.IntFlag):
    """How a planned call is recorded; see `PlanFlag` in source/plans.h."""

    LEFT_ALONE = 1
    CALLBACK = 2
    MAPS_MEMORY = 4
    SYNCHRONIZING = 8
    MESSAGE = 16
    WATCHED = 32
    ELSEWHERE = 64
    WORK_IGNORED = 128
    RAGGED = 256
    BUCKETS = 512


def _number_at(address: int) -> MutableSequence[int]:
    number: Any = ctypes.c_int64.from_address(address)
    place: Any = memoryview(number).cast("B").cast("q")
    return place


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

    def next_bucket(self) -> MutableSequence[int]:
        """The place of one number in the library's memory: which bucket of gradients comes next."""
        return _number_at(self._library.next_bucket(self.handle))

    def set_buckets(self, label: int, sizes: Sequence[int]) -> None:
        """Say how many bytes each of the buckets has whose number is recorded, and the name id of the label."""
        self._library.set_buckets(self.handle, label, (ctypes.c_uint64 * len(sizes))(*sizes), len(sizes))

    def is_synchronized(self) -> bool:
        """Whether a collective has ended that proves that every member was there."""
        return bool(self._library.is_synchronized(self.handle))


class NativePlan(NamedTuple):
    """How calls of one kind from one call site are recorded.

    Attributes:
        group: Their group.
        counter: What `new_counter` returned for operations like them.
        devices: The library's handle of what is in flight on devices; None if they run on the CPU.
        tail: The constant part of their records.
        kind: Comes back with a wait that raises, and with what becomes of operations on devices.
        flags: See `PlanFlag`.
        ragged_factor: By what the bytes of a call's tensors are multiplied to get the size of its message, if calls of
            all sizes share this plan; None if they do not.
    """

    group: NativeGroup
    counter: Any
    devices: int | None
    tail: bytes
    kind: int
    flags: PlanFlag
    ragged_factor: int | None


class NativePlaces:
    """Counters in the library's memory, identified by their addresses; see `Places` in capture/message_counters.py.

    Memory of a tape is not given back. A counter that no plan refers to any more is used again, but late: a thread may
    have taken a plan and be about to count.
    """

    def __init__(self, library: Library, session: int) -> None:
        self._library = library
        self._session = session
        self._free: deque[int] = deque()

    def new(self) -> object:
        """Return the address of a counter that holds 0."""
        if len(self._free) <= _UNUSED:
            return self._library.add_counter(self._session)
        address = self._free.popleft()
        self.counter(address)[0] = 0
        return address

    def counter(self, place: object) -> MutableSequence[int]:
        """Return the number at an address."""
        assert isinstance(place, int)
        return _number_at(place)

    def forget(self, place: object) -> None:
        """Use an address again, when many others have been forgotten."""
        assert isinstance(place, int)
        self._free.append(place)


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
        return _number_at(self._library.add_counter(self._session))

    def counter_places(self) -> NativePlaces:
        """Return memory for counters that are used again."""
        return NativePlaces(self._library, self._session)

    def learn_code(self, code: int, kind: int) -> None:
        """Note what the walk to a call site does at a code object; see `CodeKind`."""
        self._library.learn_code(self._session, code, kind)

    def forget_code(self) -> None:
        """Forget all code objects, whose addresses may be used again."""
        self._library.forget_code(self._session)
        self.generation += 1

    def void_plans(self) -> None:
        """Plan all calls anew."""
        self._library.void_plans(self._session)
        self.generation += 1

    def plan(self, planned: NativePlan | None) -> bool:
        """Say how calls like this thread's last one are recorded; returns whether the library takes it.

        Args:
            planned: None to leave them to Python.
        """
        if planned is None:
            answer = self._library.plan(self._session, None, None, None, bytes(layout.PAYLOAD_TAIL.size), 0, 0, 0)
        else:
            is_ragged = PlanFlag(0) if planned.ragged_factor is None else PlanFlag.RAGGED
            counter = ctypes.addressof(ctypes.c_int64.from_buffer(planned.counter))
            answer = self._library.plan(
                self._session,
                planned.group.handle,
                counter,
                planned.devices,
                planned.tail,
                planned.kind,
                planned.flags | is_ragged,
                planned.ragged_factor or 0,
            )
        if answer == _ALL_FORGOTTEN:
            self.generation += 1
        return bool(answer)
