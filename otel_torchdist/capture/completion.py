"""How we know that an operation has ended, on the CPU.

The earliest of: `Work.wait` returned, `wait_tensor` returned, `is_completed()` turned true (polled). Never a
future's callback: gloo runs it with the GIL held *before* the operation counts as finished, and one in flight at
exit turns exit codes into SIGABRT.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import Work

from otel_torchdist import _guard
from otel_torchdist.capture.patches import Patches
from otel_torchdist.capture.torch_api import LIST, skip_in_dynamo
from otel_torchdist.tape.layout import Flag, How, Word

if TYPE_CHECKING:
    from otel_torchdist.capture.cuda_lanes import Enqueued
    from otel_torchdist.capture.device import Devices
    from otel_torchdist.capture.operations import OperationSchema
    from otel_torchdist.capture.process_group import GroupState

SWEPT_PER_CALL: Final = 4
"""Open operations that a new call looks at, so that ends are known finer than the poll where traffic is dense."""
MAX_MAPPED_TENSORS: Final = 64
MAX_DROPPED: Final = 32
"""Operations whose Work was dropped and for which `wait_tensor` may still be called; the tape keeps 64 open ones."""
ISSUED_NS: Final = 1_000_000_000
"""How long a Work that must not be held is held at most: until its caller surely has it."""

_LEFT_ALONE: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT)
_END_BY_WAIT: Final = int(Flag.END_BY_WAIT)
_ASYNC: Final = int(Flag.ASYNC)
_BY_WAIT: Final = int(How.WAIT)

_STRIDED: Final = torch.strided
_now: Final = time.monotonic_ns


class Call:
    """An operation on its way.

    Attributes:
        number: Its record.
        entered_ns: When it was entered.
        own_ns: When our part before the call was over, on calls whose overhead is measured; else 0.
        tape: Where it is recorded.
        needs_care: Not 0 when more has to be done at its end than to write it down.
        members: Operations that end with this one (coalesced).
        work: Its Work, held only until the end is known, and never for a device's operation.
        work_id: `id` of its Work.
        reference: Weak reference to a Work that must not be held.
        pointers: Where it writes to.
        enqueued: What is known of it on its device, None when it cannot be followed there; set on device calls only.
    """

    enqueued: Enqueued | None
    __slots__ = (
        "async_op",
        "enqueued",
        "entered_ns",
        "flags",
        "group",
        "members",
        "needs_care",
        "number",
        "on_cpu",
        "operation",
        "own_ns",
        "pointers",
        "reference",
        "tape",
        "work",
        "work_id",
    )

    def __init__(
        self, number: int, entered_ns: int, group: GroupState, operation: OperationSchema, flags: int, on_cpu: bool
    ) -> None:
        """An operation that has just been entered."""
        self.number = number
        self.tape = group.recorder.tape
        self.entered_ns = entered_ns
        self.group = group
        self.operation = operation
        self.flags = flags
        self.on_cpu = on_cpu
        self.own_ns = 0
        self.needs_care = flags & _LEFT_ALONE
        self.members: list[Call] | None = None
        self.work: Any = None
        self.work_id = 0
        self.reference: Any = None
        self.pointers: list[int] | None = None


class Works:
    """The operations whose end is not known yet.

    Attributes:
        open: Those operations, by the `id` of their Work.
    """

    def __init__(self, patches: Patches, on_async: Callable[[], None]) -> None:
        """Patch `Work.wait`; `on_async` is called when an operation is left to itself."""
        self._patches = patches
        self.on_async = on_async
        self.open: dict[int, Call] = {}
        self._by_tensor: dict[int, Call] = {}
        self._just_issued: dict[int, Call] = {}
        self._dropped: dict[Call, None] = {}
        self._patched_types: set[type] = set()
        self._patch_wait(Work)

    def _patch_wait(self, cls: type) -> None:
        """Patch every class that brings a `wait` of its own, FakeWork for one."""
        for owner in cls.__mro__:
            if owner in self._patched_types or "wait" not in vars(owner):
                continue
            self._patches.replace(owner, "wait", self._make_wait)
            self._patched_types.add(owner)
        self._patched_types.add(cls)

    def _make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        take = self.open.pop
        wait_began, wait_failed = self.wait_began, self.wait_failed
        waited, ended = self._waited, self.ended

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = take(id(work), None)
            if call is None:
                return original(work, *args, **kwargs)
            if call.needs_care:
                wait_began(call)
            try:
                result = original(work, *args, **kwargs)
            except BaseException as error:
                wait_failed(call, error)
                raise
            if call.needs_care:
                ended(call, How.WAIT)
            else:
                waited(call)
            return result

        return wait

    def follow(self, call: Call, result: Any, args: tuple[Any, ...]) -> None:
        """Take up an operation that the backend has accepted."""
        work_index = call.operation.work
        boxed = result if work_index == 0 else result[1] if work_index > 0 else None
        if boxed is None:  # it blocked until it was over
            self.ended(call, How.CALL)
            return
        # pybind gives the same Python object to the caller as long as this one lives: its id is the key.
        work = Work.unbox(boxed)
        self._register(call, work)
        if call.flags & _ASYNC:
            self._map_tensors(call, args[0])
            self.on_async()

    def follow_coalesced(self, members: list[Call], work: Any) -> None:
        """Take up the Work that `_end_coalescing` returned for all operations issued since the start."""
        if not members:
            return
        head = members[0]
        head.members = members[1:]
        head.needs_care = 1
        if work is None:
            self.ended(head, How.CALL)
            return
        self._register(head, work)
        self.on_async()

    def _register(self, call: Call, work: object) -> None:
        kind = type(work)
        if kind not in self._patched_types:
            self._patch_wait(kind)
        call.work_id = id(work)
        self.open[call.work_id] = call
        call.work = work
        if call.flags & _LEFT_ALONE and call.flags & _END_BY_WAIT:
            self._hold_shortly(call, work)

    def _hold_shortly(self, call: Call, work: object) -> None:
        """Hold a Work only until this thread's next such call, so that the caller gets this very object."""
        call.reference = weakref.ref(work, lambda _: self._work_dropped(call))
        thread = threading.get_ident()
        before = self._just_issued.get(thread)
        self._just_issued[thread] = call
        if before is not None:
            before.work = None

    def let_go_of_issued(self) -> None:
        """Let go of Works that are held only until their callers have them."""
        long_ago = _now() - ISSUED_NS
        for call in list(self._just_issued.values()):
            if call.entered_ns < long_ago:
                call.work = None

    def _work_dropped(self, call: Call) -> None:
        """Nobody can wait for its Work any more. But c10d may have its own for `wait_tensor`, which we would see."""
        if not call.pointers:
            self.ended(call, How.ABANDONED)
            return
        call.reference = None
        if self.open.get(call.work_id) is call:
            self.open.pop(call.work_id, None)
        self._dropped[call] = None
        if len(self._dropped) > MAX_DROPPED:
            self.ended(next(iter(self._dropped)), How.ABANDONED)

    def _map_tensors(self, call: Call, output: Any) -> None:
        """c10d's first argument is what it writes to; `wait_tensor` names an operation by that memory."""
        outputs: list[Any] = output if type(output) is LIST else [output]
        if outputs and type(outputs[0]) is LIST:
            return  # lists of lists never come from functional collectives
        dense = (tensor for tensor in outputs[:MAX_MAPPED_TENSORS] if tensor.layout is _STRIDED)
        call.pointers = [pointer for tensor in dense if (pointer := tensor.data_ptr())]
        for pointer in call.pointers:
            before = self._by_tensor.get(pointer)
            if before in self._dropped:  # its memory serves another operation now: nobody will wait
                self.ended(before, How.ABANDONED)
            self._by_tensor[pointer] = call

    def of_tensor(self, tensor: Any) -> Call | None:
        """The open operation that writes to `tensor`."""
        return self._by_tensor.get(tensor.data_ptr()) if self._by_tensor and not tensor.is_meta else None

    def wait_began(self, call: Call) -> None:
        """The calling thread is about to wait for an operation."""
        try:
            elapsed = _now() - call.entered_ns
            call.tape.mark(call.number, Word.WAIT_ENTERED, elapsed, How.CALL)
        except Exception as error:
            _guard.report("Work.wait", error)

    def wait_failed(self, call: Call, error: BaseException) -> None:
        """A wait raised. That the call itself had returned is written down: the operation was issued."""
        if not call.flags & _LEFT_ALONE:
            call.tape.mark(call.number, Word.RETURNED, _now() - call.entered_ns, How.CALL)
        self.ended(call, How.FAILED, error)

    def _waited(self, call: Call) -> None:
        """A synchronous call is over: the way that most operations end, kept short."""
        now = _now()
        try:
            call.work = None
            call.tape.complete(call.number, call.entered_ns, now, _BY_WAIT)
            if call.operation.synchronizing:
                call.group.synchronized = True
        except Exception as error:
            _guard.report("Work.wait", error)

    def ended(self, call: Call, how: How, error: BaseException | None = None) -> None:
        """Record an end, whoever sees it first, and let go of the Work."""
        now = _now()
        try:
            self._let_go(call)
            tape = call.tape
            failure = tape.names.intern(type(error).__qualname__) if error is not None else 0
            tape.complete(call.number, call.entered_ns, now, how, failure)
            for member in call.members or ():
                tape.complete(member.number, member.entered_ns, now, how, failure)
            if call.operation.synchronizing and how in (How.WAIT, How.POLL):
                call.group.synchronized = True
        except Exception as own:
            _guard.report("completion", own)

    def _let_go(self, call: Call) -> None:
        for pointer in call.pointers or ():
            if self._by_tensor.get(pointer) is call:
                self._by_tensor.pop(pointer, None)
        self._dropped.pop(call, None)
        if self.open.get(call.work_id) is call:
            self.open.pop(call.work_id, None)
        call.work = call.reference = None

    def sweep(self, limit: int) -> int:
        """Look at the oldest `limit` operations and record those that are complete.

        Returns:
            How many are still open and can be looked at.
        """
        left = 0
        for call in self._oldest(limit):
            work = call.work
            if work is None or call.flags & _END_BY_WAIT:
                continue
            if work.is_completed():
                self._completed(call, work)
            else:
                left += 1
        return left

    def _oldest(self, limit: int) -> list[Call]:
        try:
            return list(itertools.islice(self.open.values(), limit))
        except RuntimeError:  # the garbage collector came in between, and a dropped Work left the table
            return []

    def _completed(self, call: Call, work: Any) -> None:
        """A poll found it complete, which it also is when its peer has died: only its future tells."""
        error = _failure_of(work) if type(work) is Work else None
        self.ended(call, How.POLL if error is None else How.FAILED, error)

    def forget_all(self) -> None:
        """Let go of everything; the operations stay open on their tapes."""
        for table in (self.open, self._by_tensor, self._just_issued, self._dropped):
            table.clear()


def _failure_of(work: Any) -> Exception | None:
    """Why a completed Work of torch's own failed; `Work.exception` would warn that it is deprecated."""
    try:
        future = work.get_future()
    except RuntimeError:  # this backend has none
        return None
    try:
        if future.done():
            future.value()
    except Exception as error:
        return error
    return None


def make_wait_tensor(works: Works, devices: Devices, redispatch: Callable[..., Any], key: Any) -> Callable[..., Any]:
    """The kernel of `_c10d_functional::wait_tensor`."""

    def wait_tensor(keyset: Any, tensor: Any) -> Any:
        call = works.of_tensor(tensor)
        if call is None:
            wait = devices.wait_begins(tensor) if devices.written else None
            try:
                return redispatch(keyset.remove(key), tensor)
            finally:
                if wait is not None:
                    devices.wait_ends(wait)
        works.wait_began(call)
        try:
            result = redispatch(keyset.remove(key), tensor)
        except BaseException as error:
            works.wait_failed(call, error)
            raise
        works.ended(call, How.WAIT)
        return result

    skip_in_dynamo(wait_tensor.__code__)
    return wait_tensor
