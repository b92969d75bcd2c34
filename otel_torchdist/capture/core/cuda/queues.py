"""Queues of operations in flight on devices, in execution order, with detection of their starts and ends.

A queue is a stream: the caller's for a synchronous operation, NCCL's for an asynchronous one. Only the operation at the
head is queried, because all others wait for it. So 200 operations behind one slow kernel cost one query per poll, and
on the tape each starts when its predecessor has ended.

An end that only PyTorch's watchdog shows comes up to a second late. A timed wait for a later operation of the queue
bounds it: otherwise the late end would also be the start, and hide the exact end, of each operation behind it.

NCCL runs the operations of a communicator in order, on any streams. So an operation on NCCL's stream has ended if a
later operation of the same group has ended on the caller's stream, even if PyTorch's watchdog does not report it: the
watchdog may be late, may hang with the device, and stops at the first error.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_torchdist.capture.core.c10d.devices import ON_BACKEND_STREAM
from otel_torchdist.capture.core.cuda.clock import DeviceClock
from otel_torchdist.capture.core.cuda.driver import DeviceDriver, EventPool
from otel_torchdist.model.kinds import Blame, Flag, How
from otel_torchdist.tape.layout import Word, pack_failure

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import OpenCall

BLOCKED_MS: Final = 0.02
"""Minimum time that a stream blocks in a wait, beyond the host's time to enqueue it, for an exact end: the stream
resumed when the operation ended. After a shorter block, the operation may have ended before the wait."""
FIRST_TIMED: Final = 32
PAIR_EVERY: Final = 32
"""Waits for asynchronous operations are timed for the first operations of a communicator, then for two in a row of 32:
the end of the first is the start of the second, whose duration is then exact. An event takes the program's thread 9 µs,
and the two events of a wait do not change what a stall shows: every operation has an event for its start. Must agree
with source/devices.cc."""
MAX_LOOKED_AT: Final = 128
"""Number of later operations that are looked at for a timed wait. Most pairs are less than 60 operations apart."""
_HASH: Final = 0x9E37_79B9_7F4A_7C15
_WORD: Final = (1 << 64) - 1
RESULTS: Final = {0: "", 1: "TIMEOUT", 2: "COMM_ERROR"}
"""PyTorch's `WorkResult`."""
_BLAMES: Final = {RESULTS[1]: Blame.TIMEOUT, RESULTS[2]: Blame.CONNECTION}

_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)
_COALESCED: Final = int(Flag.COALESCED)

_now: Final = time.monotonic_ns


def is_timed(sequence: int) -> bool:
    """Return whether waits for an operation are timed, by its number in its communicator: the same on all members.

    The hash chooses other operations in each step, although each step issues the same number of them.
    """
    return sequence <= FIRST_TIMED or _begins_pair(sequence) or _begins_pair(sequence - 1)


def _begins_pair(sequence: int) -> bool:
    return (sequence * _HASH & _WORD) * PAIR_EVERY <= _WORD


class StreamWait(NamedTuple):
    """A stream's wait for an operation.

    Attributes:
        began_ns: When the host began to enqueue the wait.
        before: Event ahead of the wait.
        after: Event behind the wait.
        took_ns: Time that the host took to enqueue the wait; 0 until the wait is enqueued.
    """

    enqueued: QueuedOperation
    stream: int
    began_ns: int
    before: int
    after: int
    took_ns: int = 0


class QueuedOperation:
    """An operation in flight on a device. Holds neither a tensor nor a Work.

    Attributes:
        call: The operation; the first operation of a coalesced block.
        queue_key: Identifies the queue of the stream that runs it. NCCL has a stream per group and per pair of peers.
        stream: The caller's stream.
        start: Event on that stream before the operation.
        end: Event on that stream after it; 0 if NCCL runs the operation on a stream of its own.
        result: Future of PyTorch's watchdog, for an operation without `end`; None until the call has returned.
        is_timed: Whether a wait for it is timed.
        is_issued: Whether the backend has accepted it, and `end` has been recorded if there is one.
        is_void: Whether the operation is no longer followed.
        wait: The first recorded wait for it; None without a wait.
        pointers: Addresses of the output's memory.
        resumed: When a stream continued after `wait`, and whether the wait blocked it; None until that is known.
        started: Start on the device and the source of that time; None until it has started.
    """

    __slots__ = (
        "call",
        "device",
        "end",
        "is_issued",
        "is_timed",
        "is_void",
        "pointers",
        "queue_key",
        "result",
        "resumed",
        "start",
        "started",
        "stream",
        "wait",
    )

    def __init__(self, call: OpenCall, device: int, stream: int, peer: int, start: int, end: int) -> None:
        """Initialize an operation that is about to be issued. `start` has been recorded."""
        self.queue_key = _queue_key(call, device, stream, peer)
        self.call = call
        self.device = device
        self.stream = stream
        self.start = start
        self.end = end
        self.result: Any = None
        self.is_timed = True
        self.is_issued = False
        self.is_void = False
        self.wait: StreamWait | None = None
        self.pointers: tuple[int, ...] = ()
        self.resumed: tuple[int, bool] | None = None
        self.started: tuple[int, How] | None = None

    def refresh(self) -> None:
        """Update the state of a natively recorded operation."""

    def release(self, pool: EventPool) -> None:
        """Return its events to the pool."""
        events = [self.start]
        if self.end:
            events.append(self.end)
        if self.wait is not None:
            events += [self.wait.before, self.wait.after]
        pool.give_back(self.device, events)

    def coalesce(self, members: list[OpenCall]) -> None:
        """Add the later operations of the coalesced block."""
        self.call.members = members
        if self.started is not None:
            self.begun(*self.started)

    def begun(self, started_ns: int, how: How) -> None:
        """Record its start on the device."""
        self.started = started_ns, how
        for call in self._calls():
            call.tape.mark(call.number, Word.STARTED, max(started_ns - call.entered_ns, 0), how)

    def ended(self, ended_ns: int, how: How, failure: str = "") -> None:
        """Record its end on the device."""
        for call in self._calls():
            name = call.tape.names.intern(failure) if failure else 0
            word = pack_failure(name, _BLAMES.get(failure, Blame.UNKNOWN))
            call.tape.complete(call.number, call.entered_ns, max(ended_ns, call.entered_ns + 1), how, word)
        if self.call.operation.synchronizing and how is not How.FAILED and how is not How.UNTRACKED:
            self.call.group.synchronized = True

    def _calls(self) -> Iterable[OpenCall]:
        members = self.call.members
        return (self.call, *members) if members else (self.call,)


def _queue_key(call: OpenCall, device: int, stream: int, peer: int) -> Hashable:
    if not call.flags & ON_BACKEND_STREAM:
        return device, stream
    is_pair = call.flags & _POINT_TO_POINT and not call.flags & _COALESCED
    return device, call.group, peer if is_pair else -1


class _Queue:
    """Operations that a device runs one after the other. `free_ns` is the end of the last completed operation."""

    __slots__ = ("free_how", "free_ns", "operations")

    def __init__(self) -> None:
        self.operations: deque[QueuedOperation] = deque()
        self.free_ns = 0
        self.free_how = How.EVENT


class Queues:
    """The queues of all devices of this process. Used by one thread."""

    def __init__(self, driver: DeviceDriver, dropped: Callable[[QueuedOperation], None]) -> None:
        """Initialize without queues. `dropped` is called with each operation that leaves its queue."""
        self._driver = driver
        self._dropped = dropped
        self._queues: dict[Hashable, _Queue] = {}
        self._latest: dict[tuple[int, int], tuple[int, int]] = {}
        self._clocks: dict[int, DeviceClock] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in flight."""
        return not self._queues

    def add(self, enqueued: QueuedOperation) -> None:
        """Append an operation to its queue."""
        queue = self._queues.get(enqueued.queue_key)
        if queue is None:
            queue = self._queues[enqueued.queue_key] = _Queue()
        queue.operations.append(enqueued)

    def poll(self) -> None:
        """Record the operations that the devices have started and ended.

        Raises:
            DriverError: A device reports an error.
        """
        for device in {queue.operations[0].device for queue in self._queues.values()}:
            if device not in self._clocks:
                self._clocks[device] = DeviceClock(self._driver, device)
            self._clocks[device].renew()
        for key, queue in list(self._queues.items()):
            while queue.operations and self._is_over(queue.operations[0], queue):
                self._dropped(queue.operations.popleft())
            if not queue.operations:
                del self._queues[key]

    def events(self) -> list[int]:
        """Return the events of the clocks."""
        return [event for clock in self._clocks.values() for event in clock.events()]

    def forget_all(self) -> None:
        """Drop all operations. Their records stay unchanged."""
        queues = list(self._queues.values())
        self._queues.clear()
        self._latest.clear()
        for queue in queues:
            for enqueued in queue.operations:
                self._dropped(enqueued)

    def give_up(self) -> None:
        """Record unknown ends for all operations, because the devices can no longer be queried."""
        for queue in self._queues.values():
            for enqueued in queue.operations:
                enqueued.refresh()
                if not enqueued.is_void:
                    enqueued.begun(enqueued.call.entered_ns, How.UNTRACKED)
                    enqueued.ended(_now(), How.UNTRACKED)
        self.forget_all()

    def _is_over(self, enqueued: QueuedOperation, queue: _Queue) -> bool:
        """Poll the operation at the head of a queue. Return whether it is over."""
        enqueued.refresh()
        if enqueued.is_void:
            return True
        is_over, overtaken_ns = self._has_ended(enqueued), self._overtaken_ns(enqueued)
        if enqueued.started is None and self._driver.is_done(enqueued.start):
            self._begin(enqueued, queue)
        if overtaken_ns is not None:
            self._end_on_backend_stream(enqueued, queue, overtaken_ns)
        elif is_over:
            self._end(enqueued, queue)
        return is_over or overtaken_ns is not None

    def _has_ended(self, enqueued: QueuedOperation) -> bool:
        if enqueued.end:
            return enqueued.is_issued and self._driver.is_done(enqueued.end)
        return enqueued.result is not None and enqueued.result.done()

    def _overtaken_ns(self, enqueued: QueuedOperation) -> int | None:
        """Return the end of a later operation of the same communicator on a caller's stream, or None."""
        if enqueued.end or not enqueued.is_issued or enqueued.call.flags & _POINT_TO_POINT:
            return None
        number, ended_ns = self._latest.get((enqueued.device, enqueued.call.group.name_id), (0, 0))
        return ended_ns if number > enqueued.call.number else None

    def _begin(self, enqueued: QueuedOperation, queue: _Queue) -> None:
        """Record the start: the caller's stream has reached the operation, and its predecessors have ended."""
        started_ns, how = self._clocks[enqueued.device].date(enqueued.start)
        if started_ns < queue.free_ns:
            started_ns, how = queue.free_ns, queue.free_how
        enqueued.begun(max(started_ns, enqueued.call.entered_ns), how)

    def _end(self, enqueued: QueuedOperation, queue: _Queue) -> None:
        if not enqueued.end:
            failure = _failure_of(enqueued.result)
            if failure:
                enqueued.ended(_now(), How.FAILED, failure)
            else:
                self._end_on_backend_stream(enqueued, queue, _now())
            return
        ended_ns, how = self._clocks[enqueued.device].date(enqueued.end)
        group = enqueued.call.group
        if len(group.name.ranks) > 1:  # streams of a group of one are independent
            self._latest[enqueued.device, group.name_id] = enqueued.call.number, ended_ns
        self._record_end(enqueued, queue, ended_ns, how)

    def _end_on_backend_stream(self, enqueued: QueuedOperation, queue: _Queue, observed_ns: int) -> None:
        """Record an end that was observed at `observed_ns`. A stream that waited for it may give a more exact time."""
        resumed = self._resumed(enqueued) or self._resumed_behind(queue)
        if resumed is None:
            self._record_end(enqueued, queue, observed_ns, How.WATCHDOG)
            return
        resumed_ns, is_exact = resumed
        is_exact = is_exact and enqueued.resumed is resumed
        self._record_end(enqueued, queue, min(resumed_ns, observed_ns), How.EVENT if is_exact else How.WATCHDOG)

    def _resumed(self, enqueued: QueuedOperation) -> tuple[int, bool] | None:
        """Return when a stream continued after its timed wait for an operation; None without one, or until then.

        The operation has ended by then, and at that moment if the second value is true: the stream was blocked.
        """
        wait = enqueued.wait
        if enqueued.resumed is None and wait is not None and self._driver.is_done(wait.after):
            resumed_ns, how = self._clocks[enqueued.device].date(wait.after)
            blocked_ms = self._driver.elapsed_ms(wait.before, wait.after)
            enqueued.resumed = resumed_ns, how is How.EVENT and blocked_ms >= BLOCKED_MS + wait.took_ns / 1e6
        return enqueued.resumed

    def _resumed_behind(self, queue: _Queue) -> tuple[int, bool] | None:
        """Return the first known result of `_resumed` for the operations behind the head, which had ended by then."""
        for later in itertools.islice(queue.operations, 1, MAX_LOOKED_AT):
            if later.wait is not None:
                return self._resumed(later)
        return None

    def _record_end(self, enqueued: QueuedOperation, queue: _Queue, ended_ns: int, how: How) -> None:
        if enqueued.started is not None and ended_ns <= enqueued.started[0]:
            ended_ns, how = enqueued.started  # the start is the predecessor's end, observed late, or by our own wait
        queue.free_ns, queue.free_how = ended_ns, how
        enqueued.ended(ended_ns, how)


def _failure_of(result: Any) -> str:
    """Return the failure that a future of the watchdog reports; '' if there was none."""
    try:
        value = int(result.value())
    except Exception as error:
        return type(error).__qualname__
    return RESULTS.get(value, "UNKNOWN")
