"""Controls native recording: the tape that C++ and Python share, and a run's groups, plans and code objects."""

from __future__ import annotations

import ctypes
import enum
import os
import weakref
from collections import deque
from collections.abc import MutableSequence, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_torchdist.errors import TapeError
from otel_torchdist.model.names import MAX_BYTES
from otel_torchdist.native.library import FAILURES, Library
from otel_torchdist.tape import layout
from otel_torchdist.tape.layout import LiveWord
from otel_torchdist.tape.writer import TapeWriter

if TYPE_CHECKING:
    from otel_torchdist.tape.identity import TapeIdentity

_OPEN_NUMBERS: Final = 1024
"""Initial size of the array for `open_numbers`."""


class NativeTapeWriter(TapeWriter):
    """Writer of one rank's tape through the library.

    Attributes:
        session: The library's handle of this tape.
    """

    def __init__(self, library: Library, directory: Path, identity: TapeIdentity, names_bytes: int = MAX_BYTES) -> None:
        """Create the files, and map them for the library, too.

        Raises:
            TapeError: There is no space, the files cannot be created, or the identity is invalid.
        """
        super().__init__(directory, identity, names_bytes)
        self.library = library
        self.session: int = library.open(self._lock.fileno(), identity.capacity) or 0
        if not self.session:
            self.close()
            for path in (self.path, self.path.with_suffix(".names")):
                os.unlink(path)
            raise TapeError(f"cannot map {self.path} a second time")
        # Also runs in a forked child, where it only unmaps the child's copy.
        weakref.finalize(self, library.release, self.session).atexit = False

    def begin_prepared(self, entered_ns: int, step: int, sequence: int, tail: bytes) -> int:
        """Record an operation as entered; see `TapeWriter`."""
        return self.library.tape_begin(self.session, entered_ns, step, sequence, tail)

    def _append(self, payload: bytes, record_words: bytes) -> int:
        assert record_words == layout.EMPTY_WORDS
        return self.library.tape_append(self.session, payload)

    def find_record_entered_at(self, entered_ns: int) -> int:
        """Return the number of the open operation entered at a given time; see `TapeWriter`."""
        return self.library.tape_find_record_entered_at(self.session, entered_ns)

    def mark(self, number: int, index: int, elapsed_ns: int, how: int) -> None:
        """Store one of a record's words; see `TapeWriter`."""
        self.library.tape_mark(self.session, number, index, elapsed_ns, how)

    def clear(self, number: int, index: int) -> None:
        """Clear a word stored by `mark`."""
        self.library.tape_clear(self.session, number, index)

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
        size = _OPEN_NUMBERS
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


_MIN_FREE_COUNTERS: Final = 16_384
"""The oldest forgotten counter is reused once more than this many are free."""
_OTHERS_DROPPED: Final = 2
"""Result of `otd_plan`: the thread had too many plans, and its other plans were dropped."""


class PlanFlag(enum.IntFlag):
    """Flags for recording a planned call; see `PlanFlag` in source/plans.h."""

    BACKGROUND = 1
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
    view: Any = memoryview(number).cast("B").cast("q")
    return view


class NativeGroup:
    """A process group in the library."""

    def __init__(self, library: Library, handle: int) -> None:
        self._library = library
        self.handle = handle

    def set_default(self) -> None:
        """Mark the group as the default group."""
        self._library.set_default(self.handle)

    def set_coalescing(self, is_coalescing: bool) -> None:
        """Start or end a coalescing block. Python records its calls."""
        self._library.set_coalescing(self.handle, is_coalescing)

    def next_bucket(self) -> MutableSequence[int]:
        """Return the index of the next gradient bucket, as a sequence of one number in the library's memory."""
        return _number_at(self._library.next_bucket(self.handle))

    def set_buckets(self, label: int, sizes: Sequence[int]) -> None:
        """Set the sizes in bytes of the numbered buckets, and the name id of their label."""
        self._library.set_buckets(self.handle, label, (ctypes.c_uint64 * len(sizes))(*sizes), len(sizes))

    def is_synchronized(self) -> bool:
        """Return whether a collective has ended whose end proves that every member entered it."""
        return bool(self._library.is_synchronized(self.handle))


class NativePlan(NamedTuple):
    """The plan for recording calls of one kind from one call site.

    Attributes:
        group: The group.
        counter: The counter of the calls, from `new_counter`.
        devices: The library's handle of operations on devices; None for the CPU.
        tail: The constant part of the records.
        kind: Python's number for the plan. The library reports it with waits that raise and operations on devices.
        flags: See `PlanFlag`.
        ragged_factor: If calls of all sizes share this plan: the ratio of message size to the bytes of the call's
            tensors. Otherwise None.
    """

    group: NativeGroup
    counter: Any
    devices: int | None
    tail: bytes
    kind: int
    flags: PlanFlag
    ragged_factor: int | None


class NativeCounters:
    """Counters in the library's memory, identified by their addresses; see `CounterMemory` in capture/core.

    The memory is freed with the tape. A counter without plans is reused, but late: a thread may have read a plan and
    be about to count.
    """

    def __init__(self, library: Library, session: int) -> None:
        self._library = library
        self._session = session
        self._free: deque[int] = deque()

    def new(self) -> object:
        """Return the address of a counter that holds 0."""
        if len(self._free) <= _MIN_FREE_COUNTERS:
            return self._library.add_counter(self._session)
        address = self._free.popleft()
        self.counter(address)[0] = 0
        return address

    def counter(self, slot: object) -> MutableSequence[int]:
        """Return the counter at an address, as a sequence of one number."""
        assert isinstance(slot, int)
        return _number_at(slot)

    def forget(self, slot: object) -> None:
        """Reuse an address, after many others have been forgotten."""
        assert isinstance(slot, int)
        self._free.append(slot)


class NativeRecording:
    """The library's recording on one tape.

    Attributes:
        generation: Generation of plans, from 1. It increases when all plans become void.
    """

    def __init__(self, tape: NativeTapeWriter) -> None:
        """Initialize without recording. `begin` starts it."""
        self._tape = tape
        self._library = tape.library
        self._session = tape.session
        self.generation = 1

    def begin(self, window: int) -> None:
        """Start recording. Python ends a step after every `window` collectives of the default group."""
        failures = (ctypes.c_uint32 * len(FAILURES))(*map(self._tape.names.intern, FAILURES))
        self._library.begin(self._session, window, failures)

    def end(self) -> None:
        """Stop recording calls. Ends of operations are still recorded."""
        self._library.end(self._session)

    def stop_windows(self) -> None:
        """Stop ending steps by windows of collectives."""
        self._library.stop_windows(self._session)

    def add_group(self, has_one_channel: bool) -> NativeGroup:
        """Add a process group."""
        return NativeGroup(self._library, self._library.add_group(self._session, has_one_channel))

    def new_counter(self) -> MutableSequence[int]:
        """Return a sequence of one number in the library's memory. It lives as long as the tape."""
        return _number_at(self._library.add_counter(self._session))

    def counter_memory(self) -> NativeCounters:
        """Return memory for reusable counters."""
        return NativeCounters(self._library, self._session)

    def learn_code(self, code: int, kind: int) -> None:
        """Add the kind of a code object; see `CodeKind`."""
        self._library.learn_code(self._session, code, kind)

    def forget_code(self) -> None:
        """Drop all code objects, whose addresses may be reused."""
        self._library.forget_code(self._session)
        self.generation += 1

    def void_plans(self) -> None:
        """Drop all plans."""
        self._library.void_plans(self._session)
        self.generation += 1

    def plan(self, plan: NativePlan | None) -> bool:
        """Set the plan for calls like this thread's last call. Return whether the library has accepted it.

        Args:
            plan: The plan; None to record such calls in Python.
        """
        if plan is None:
            result = self._library.plan(self._session, None, None, None, bytes(layout.PAYLOAD_TAIL.size), 0, 0, 0)
        else:
            is_ragged = PlanFlag(0) if plan.ragged_factor is None else PlanFlag.RAGGED
            counter = ctypes.addressof(ctypes.c_int64.from_buffer(plan.counter))
            result = self._library.plan(
                self._session,
                plan.group.handle,
                counter,
                plan.devices,
                plan.tail,
                plan.kind,
                plan.flags | is_ragged,
                plan.ragged_factor or 0,
            )
        if result == _OTHERS_DROPPED:
            self.generation += 1
        return bool(result)
