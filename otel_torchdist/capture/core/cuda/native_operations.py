"""Takes over CUDA operations that the native library recorded, for the poller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from otel_torchdist.capture.core.calls.call import OpenCall
from otel_torchdist.capture.core.cuda.driver import DriverError, EventPool
from otel_torchdist.capture.core.cuda.queues import QueuedOperation, StreamWait
from otel_torchdist.native.devices import (
    IS_ELSEWHERE,
    IS_ISSUED,
    IS_VOID,
    RESULT_FAILED,
    RESULT_SHIFT,
    DeviceItem,
    NativeDevices,
)
from otel_torchdist.native.library import FAILURES

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import Plan

_HAS_LEFT: Final = IS_ISSUED | IS_VOID | IS_ELSEWHERE
"""Flags that are set once the call has left the library."""


class _Completed:
    """Stand-in for a completed future of PyTorch's watchdog, with the result that the library has read from it."""

    def __init__(self, result: int) -> None:
        """Initialize with the result that the library reports."""
        self._result = result

    def done(self) -> bool:
        """Return True."""
        return True

    def value(self) -> int:
        """Return PyTorch's `WorkResult`."""
        return self._result - 1


class _Failed(_Completed):
    """Stand-in for a failed future of PyTorch's watchdog."""

    def value(self) -> int:
        """Raise an error of the class that the library reports."""
        name = FAILURES[self._result - RESULT_FAILED]
        raise type(name, (RuntimeError,), {})


class NativeOperation(QueuedOperation):
    """A natively recorded operation."""

    __slots__ = ("_devices", "slot")

    def __init__(self, devices: NativeDevices, item: DeviceItem, plan: Plan, peer: int) -> None:
        """Take an operation over.

        Args:
            devices: The library's operations.
            item: The library's item of the operation.
            plan: A plan with the same group, operation and flags.
            peer: Global rank of the peer, if messages of each peer have a separate queue.
        """
        super().__init__(
            OpenCall(item.number, item.entered_ns, plan),
            item.device,
            item.stream or 0,
            peer,
            item.before,
            item.after or 0,
        )
        self._devices = devices
        self.slot = item.slot

    def refresh(self) -> None:
        """Read the state, which the calling thread writes."""
        state = self._devices.state(self.slot)
        self.is_issued = bool(state & (IS_ISSUED | IS_ELSEWHERE))
        self.is_void = self.is_void or bool(state & IS_VOID)
        if state & IS_ELSEWHERE:
            self.end = 0
            self.result = _result_of(state >> RESULT_SHIFT)

    def release(self, pool: EventPool) -> None:
        """Return its events, unless its call has not returned: the calling thread will still use them."""
        if self.wait is not None:
            self._devices.give_back(self.device, (self.wait.before, self.wait.after))
        if self._devices.state(self.slot) & _HAS_LEFT:
            self._devices.release(self.slot)


def _result_of(result: int) -> _Completed | None:
    if not result:
        return None
    return _Failed(result) if result >= RESULT_FAILED else _Completed(result)


class NativeInbox:
    """The operations that the library handed over. Used by the poller's thread only."""

    def __init__(
        self,
        devices: NativeDevices,
        plan_of: Callable[[int, int], Plan | None],
        peer_of: Callable[[Plan, int], int],
        describe: Callable[[int], str],
    ) -> None:
        """Initialize without operations.

        Args:
            devices: The library's operations.
            plan_of: Returns the plan of a session and a kind, or None if its tape has ended.
            peer_of: Returns the peer of an operation with a separate queue for each peer; -1 otherwise.
            describe: Returns the name of a device error.
        """
        self.devices = devices
        self._plan_of = plan_of
        self._peer_of = peer_of
        self._describe = describe
        self._in_flight: dict[int, NativeOperation] = {}

    def take(self) -> list[QueuedOperation]:
        """Return the operations since the last call. Waits are added to theirs, also to earlier ones."""
        operations: list[QueuedOperation] = []
        while items := self.devices.take():
            for item in items:
                if item.is_wait:
                    self._add_wait(item)
                else:
                    self._add_operation(item, operations)
        return operations

    def _add_operation(self, item: DeviceItem, operations: list[QueuedOperation]) -> None:
        plan = self._plan_of(item.session or 0, item.kind)
        if plan is None:
            return  # its tape has ended. The library does not reuse its slot, because the call may not have returned
        operation = NativeOperation(self.devices, item, plan, self._peer_of(plan, item.peer))
        self._in_flight[item.slot] = operation
        operations.append(operation)

    def _add_wait(self, item: DeviceItem) -> None:
        operation = self._in_flight.get(item.slot)
        if operation is None or operation.call.number != item.number or operation.wait is not None:
            self.devices.give_back(item.device, (item.before, item.after))
            return
        operation.wait = StreamWait(
            operation, item.stream or 0, item.entered_ns, item.before, item.after or 0, took_ns=item.took_ns
        )

    def dropped(self, operation: QueuedOperation) -> None:
        """Remove an operation that is over or dropped."""
        if isinstance(operation, NativeOperation) and self._in_flight.get(operation.slot) is operation:
            del self._in_flight[operation.slot]

    def check(self) -> None:
        """Check for device errors in the library.

        Raises:
            DriverError: A device has reported an error.
        """
        code = self.devices.failure
        if code:
            raise DriverError(self._describe(code))
