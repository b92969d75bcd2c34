"""Operations on CUDA devices that the native library has recorded, as the poller takes them over."""

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
"""One of these is set once the call has left the library."""


class _Reported:
    """A future of PyTorch's watchdog that is done."""

    def __init__(self, result: int) -> None:
        """Keep the result as the library reports it."""
        self._result = result

    def done(self) -> bool:
        """True."""
        return True

    def value(self) -> int:
        """PyTorch's `WorkResult`."""
        return self._result - 1


class _Failed(_Reported):
    """A future of PyTorch's watchdog that has failed itself."""

    def value(self) -> int:
        """Raise an error of the class that the library reports."""
        name = FAILURES[self._result - RESULT_FAILED]
        raise type(name, (RuntimeError,), {})


class NativeOperation(QueuedOperation):
    """An operation that was recorded natively."""

    __slots__ = ("_devices", "place")

    def __init__(self, devices: NativeDevices, item: DeviceItem, plan: Plan, peer: int) -> None:
        """Take an operation over.

        Args:
            devices: Where the library keeps it.
            item: What the library has handed over.
            plan: One with the same group, operation and flags.
            peer: Global rank of the peer in a point-to-point operation that has a queue of its own.
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
        self.place = item.place

    def refresh(self) -> None:
        """Look at what the calling thread has noted since."""
        state = self._devices.state(self.place)
        self.is_issued = bool(state & (IS_ISSUED | IS_ELSEWHERE))
        self.is_void = self.is_void or bool(state & IS_VOID)
        if state & IS_ELSEWHERE:
            self.end = 0
            self.result = _result_of(state >> RESULT_SHIFT)

    def release(self, pool: EventPool) -> None:
        """Give its events back, unless its call is still on its way: the calling thread will use them."""
        if self.wait is not None:
            self._devices.give_back(self.device, (self.wait.before, self.wait.after))
        if self._devices.state(self.place) & _HAS_LEFT:
            self._devices.release(self.place)


def _result_of(result: int) -> _Reported | None:
    if not result:
        return None
    return _Failed(result) if result >= RESULT_FAILED else _Reported(result)


class NativeInbox:
    """What the library has handed over to the poller's thread, to which it belongs.

    Attributes:
        devices: Where the library keeps it.
    """

    def __init__(
        self,
        devices: NativeDevices,
        plan_of: Callable[[int, int], Plan | None],
        peer_of: Callable[[Plan, int], int],
        describe: Callable[[int], str],
    ) -> None:
        """Begin with nothing.

        Args:
            devices: See above.
            plan_of: Returns the plan of a session and a kind; None if its tape has ended.
            peer_of: Returns the peer that gives an operation a queue of its own, -1 if there is none.
            describe: Returns the name of an error of the device.
        """
        self.devices = devices
        self._plan_of = plan_of
        self._peer_of = peer_of
        self._describe = describe
        self._in_flight: dict[int, NativeOperation] = {}

    def take(self) -> tuple[list[QueuedOperation], list[StreamWait]]:
        """The operations and the waits since the last call."""
        operations: list[QueuedOperation] = []
        waits: list[StreamWait] = []
        while items := self.devices.take():
            for item in items:
                if item.is_wait:
                    self._add_wait(item, waits)
                else:
                    self._add_operation(item, operations)
        return operations, waits

    def _add_operation(self, item: DeviceItem, operations: list[QueuedOperation]) -> None:
        plan = self._plan_of(item.session or 0, item.kind)
        if plan is None:
            return  # its tape has ended; its place is not used again, because its call may still be on its way
        operation = NativeOperation(self.devices, item, plan, self._peer_of(plan, item.peer))
        self._in_flight[item.place] = operation
        operations.append(operation)

    def _add_wait(self, item: DeviceItem, waits: list[StreamWait]) -> None:
        operation = self._in_flight.get(item.place)
        if operation is None or operation.call.number != item.number or operation.wait is not None:
            self.devices.give_back(item.device, (item.before, item.after))
            return
        waits.append(
            StreamWait(operation, item.stream or 0, item.entered_ns, item.before, item.after or 0, took_ns=item.took_ns)
        )

    def dropped(self, operation: QueuedOperation) -> None:
        """Forget an operation that is over or dropped."""
        if isinstance(operation, NativeOperation) and self._in_flight.get(operation.place) is operation:
            del self._in_flight[operation.place]

    def check(self) -> None:
        """Look whether a device has reported an error to the library.

        Raises:
            DriverError: It has.
        """
        code = self.devices.failure
        if code:
            raise DriverError(self._describe(code))
