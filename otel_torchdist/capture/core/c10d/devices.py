"""Follows operations on devices. The host sees when they are enqueued, but not when they start or end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch.distributed import Work

from otel_torchdist import guard
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import LIST
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.tape.layout import Word

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import OnDevice, OpenCall, Plan
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.native.devices import NativeDevices

MAX_WRITTEN: Final = 64
"""Maximum number of output tensors per operation whose addresses are kept, to recognize a wait for the operation."""

RETURNS_WORK: Final = frozenset({"nccl2", "nccl-lazy"})
"""Backends that return a Work for synchronous operations, too. These run on the caller's stream, as with NCCL.

From torch 2.15 on, `nccl` means `nccl2`.
"""
ONE_STREAM: Final = frozenset({"nccl2"})
"""Backends that run sends and receives on the same stream as asynchronous collectives."""

SETTLE_S: Final = 0.5
"""Maximum seconds to wait for the last poll, at the end of a tape."""
STOP_S: Final = 2.0
"""Maximum seconds to wait for background work to stop, when instrumentation is switched off."""
EXIT_S: Final = 1.0
"""Maximum seconds to wait for background work to stop, at the end of the process."""

ON_BACKEND_STREAM: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT)
"""Flags of operations that NCCL runs on its own streams."""

_ASYNC: Final = int(Flag.ASYNC)
_STRIDED: Final = torch.strided
_now: Final = time.monotonic_ns


class DeviceOperations(Protocol):
    """Follower of operations on the devices of one type.

    Attributes:
        written: Asynchronous operations by the address that they write to. `wait_tensor` names only that address.
    """

    written: dict[int, Any]

    @property
    def native(self) -> NativeDevices | None:
        """The native library's follower, if the library is in use."""
        ...

    def begin(self, call: OpenCall, device: int, peer: int) -> OnDevice | None:
        """Follow an operation that is about to be issued. Return None if it cannot be followed."""
        ...

    def issued(self, enqueued: Any, work: Any, pointers: tuple[int, ...] = ()) -> bool:
        """Record that the backend has accepted an operation. Return whether its end will be observed."""
        ...

    def wait_begins(self, pointer: int, device: int) -> object | None:
        """Record that a stream is about to wait for the operation that writes to `pointer`.

        Returns None if no such operation is followed.
        """
        ...

    def wait_for_several_begins(self, pointers: Iterable[int], device: int) -> object | None:
        """Record a wait as `wait_begins` does, for several pointers."""
        ...

    def wait_ends(self, wait: Any, has_returned: bool) -> None:
        """Record that the wait has been enqueued on the stream, or drop it if it raised."""
        ...

    def room_for_reading(self, device: int) -> Any:
        """Reserve room for a result that the current stream is about to compute. On failure, return the reason."""
        ...

    def copy(self, reading: Any, source: int, size: int) -> bool:
        """Enqueue the copy of a result of `size` bytes at `source`. Return whether it will arrive."""
        ...

    def give_back(self, reading: Any) -> None:
        """Release the room of a result that is not computed."""
        ...

    def read(self, reading: Any) -> None:
        """Deliver a result once it has been copied."""
        ...

    def settle(self, timeout_s: float) -> None:
        """Poll one last time before a tape ends, and drop operations that are still open."""
        ...

    def stop(self, timeout_s: float, *, destroy_events: bool = False) -> None:
        """Stop background work."""
        ...


class Devices(SessionPart):
    """Follower of operations on all devices: on CUDA to their end, on other types until they are enqueued.

    Operations that cannot be followed are marked `UNTRACKED`: started when entered, ended when the call returned.

    Attributes:
        first_cuda: Index of the CUDA device of the first operation on CUDA; None before.
        written: See `DeviceOperations.written`.
    """

    def __init__(self, begin_cuda: Callable[[], DeviceOperations | None]) -> None:
        """Initialize without devices. `begin_cuda` is called on the first operation on a CUDA device."""
        self._begin_cuda = begin_cuda
        self._has_begun_cuda = False
        self._cuda: DeviceOperations | None = None
        self.first_cuda: int | None = None
        self.written: dict[int, Any] = {}

    def before(self, call: OpenCall, tensors: Any, peer: int) -> None:
        """Follow an operation that is about to be handed to its backend.

        Args:
            call: The operation.
            tensors: Its tensor or list of tensors.
            peer: Global rank of the peer in a point-to-point operation.
        """
        call.enqueued = None
        try:
            coalescing = call.group.coalescing
            if coalescing:
                # The first operation represents all coalesced ones.
                head = next((member for member in coalescing if not member.on_cpu), call)
                if head is not call:
                    if head.enqueued is None:
                        _mark_untracked(call)
                    return
            tensor = tensors[0] if type(tensors) is LIST else tensors
            cuda = self.find_cuda() if tensor.is_cuda else None
            if cuda is not None:
                if self.first_cuda is None:
                    self.first_cuda = tensor.get_device()
                call.enqueued = cuda.begin(call, tensor.get_device(), peer_of_queue(call.plan, peer))
        except Exception as error:
            guard.report("device", error)
        if call.enqueued is None:
            _mark_untracked(call)

    @property
    def native(self) -> NativeDevices | None:
        """The native library's follower, once there has been an operation on a device."""
        return self._cuda.native if self._cuda is not None else None

    def find_cuda(self) -> DeviceOperations | None:
        """Return the follower of CUDA operations, created on the first call, or None without a usable runtime."""
        if not self._has_begun_cuda:
            self._has_begun_cuda = True
            self._cuda = self._begin_cuda()
            if self._cuda is not None:
                self.written = self._cuda.written
        return self._cuda

    def follow(self, call: OpenCall, result: Any, args: tuple[Any, ...]) -> None:
        """Follow an operation that the backend has accepted.

        Args:
            call: The operation.
            result: Return value of the dispatcher's operation.
            args: The dispatcher's arguments.
        """
        index = call.operation.work
        boxed = result if index == 0 else result[1] if index > 0 else None
        if call.enqueued is None or self._cuda is None:
            _end_unknown(call)
            return
        if boxed is not None and not call.flags & ON_BACKEND_STREAM and call.group.backend_on("cuda") in RETURNS_WORK:
            boxed = None
        pointers = _pointers(args[0]) if boxed is not None and call.flags & _ASYNC else ()
        if not self._cuda.issued(call.enqueued, None if boxed is None else Work.unbox(boxed), pointers):
            _end_unknown(call)

    def follow_coalesced(self, members: list[OpenCall], work: Any) -> None:
        """Follow coalesced operations. `work` is their common Work, or None if they were synchronous."""
        if not members:
            return
        head = members[0].enqueued
        if head is not None and self._cuda is not None:
            head.coalesce(members[1:])
            if self._cuda.issued(head, work):
                return
        for call in members:
            _end_unknown(call)

    def failed(self, call: OpenCall) -> None:
        """Stop following an operation that the backend rejected."""
        if call.enqueued is not None:
            call.enqueued.is_void = True

    def wait_begins(self, tensor: Any) -> object | None:
        """Record that the current stream is about to wait for the operation that writes to `tensor`, if any."""
        try:
            if not tensor.is_meta and tensor.is_cuda and self._cuda is not None:
                return self._cuda.wait_begins(tensor.data_ptr(), tensor.get_device())
        except Exception as error:
            guard.report("wait_tensor", error)
        return None

    def wait_for_several_begins(self, tensors: Any) -> object | None:
        """Record that the current stream is about to wait for the operations that write to these tensors."""
        try:
            devices = {tensor.get_device() for tensor in tensors if not tensor.is_meta and tensor.is_cuda}
            if len(devices) == 1 and self._cuda is not None:
                return self._cuda.wait_for_several_begins(_pointers(tensors), devices.pop())
        except Exception as error:
            guard.report("wait_tensors", error)
        return None

    def wait_ends(self, wait: object, has_returned: bool) -> None:
        """Record that the wait has been enqueued on the stream, or drop it if it raised."""
        with guard.guarded("wait_tensor"):
            if self._cuda is not None:
                self._cuda.wait_ends(wait, has_returned)

    def ends(self, recorder: Recorder) -> None:
        """Poll one last time, and drop operations that are still open."""
        if self._cuda is not None:
            self._cuda.settle(SETTLE_S)

    def close(self, *, at_exit: bool) -> None:
        """Stop background work. Destroy the CUDA events, unless the process ends."""
        if self._cuda is not None:
            self._cuda.stop(EXIT_S if at_exit else STOP_S, destroy_events=not at_exit)
        self._cuda = None

    def forget_in_child(self) -> None:
        """Drop the parent's state, which a forked child can neither use nor free."""
        self._has_begun_cuda = False
        self._cuda = self.first_cuda = None
        self.written = {}


def peer_of_queue(plan: Plan, peer: int) -> int:
    """Return the peer whose point-to-point operations have a separate queue, or -1 if the backend has one stream."""
    return -1 if plan.group.backend_on("cuda") in ONE_STREAM else peer


def _pointers(output: Any) -> tuple[int, ...]:
    tensors = output if type(output) is LIST else [output]
    return tuple(
        tensor.data_ptr()
        for tensor in tensors[:MAX_WRITTEN]
        if isinstance(tensor, torch.Tensor) and tensor.layout is _STRIDED
    )


def _mark_untracked(call: OpenCall) -> None:
    call.tape.mark(call.number, Word.STARTED, 0, How.UNTRACKED)


def _end_unknown(call: OpenCall) -> None:
    """Complete the record and mark its end as unknown."""
    _mark_untracked(call)
    call.tape.complete(call.number, call.entered_ns, _now(), How.UNTRACKED)
