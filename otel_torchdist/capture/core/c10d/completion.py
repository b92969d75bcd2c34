"""Determines when operations on the CPU end.

The end is the earliest of: `Work.wait` returned, `wait_tensor` returned, `is_completed()` turned true (polled). Python
callbacks of futures are not used: gloo runs them with the GIL held *before* the operation counts as finished, and a
callback in flight at exit turns exit codes into SIGABRT. Some libraries bring Works written in Python.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import Work

from otel_torchdist import guard
from otel_torchdist.capture.core.c10d.waits import Waits
from otel_torchdist.capture.core.failures import failure_word
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import LIST, Patches
from otel_torchdist.model.kinds import Flag, How

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import OpenCall
    from otel_torchdist.capture.core.recorder import Recorder

SWEEP_LIMIT: Final = 1024
"""Maximum number of open operations per poll."""
SWEPT_PER_CALL: Final = 4
"""Number of open operations that a new call polls. With dense traffic, this is more exact than the poller."""
MAX_MAPPED_TENSORS: Final = 64
MAX_DROPPED: Final = 32
"""Maximum number of open operations whose Work was dropped. `wait_tensor` may still end them. (A tape keeps at most
64 open operations whose slots in the ring were reused.)"""
MAX_HOLD_NS: Final = 1_000_000_000
"""Maximum time in ns to hold a Work for its caller. By then, the caller has received it."""
SETTLE_S: Final = 0.05
"""Maximum seconds to poll at the end of a tape."""
_PAUSE_S: Final = 0.001

_END_BY_WAIT: Final = int(Flag.END_BY_WAIT)
_ASYNC: Final = int(Flag.ASYNC)
_STRIDED: Final = torch.strided
_now: Final = time.monotonic_ns
_unbox: Final = Work.unbox


class _Reference(weakref.ref[Any]):
    """Weak reference to the Work of an operation."""

    __slots__ = ("call",)

    call: OpenCall


class Works(SessionPart):
    """The operations in flight on the CPU.

    Attributes:
        open: The operations, by the `id` of their Work.
    """

    def __init__(
        self,
        patches: Patches,
        on_async: Callable[[], None],
        make_native: Callable[[tuple[Any, Any]], Any] | None = None,
    ) -> None:
        """Patch `Work.wait`.

        Args:
            patches: Replaces methods, and restores them later.
            on_async: Called when an operation continues after its call has returned.
            make_native: See `Waits`.
        """
        self._on_async = on_async
        self.open: dict[int, OpenCall] = {}
        self._by_tensor: dict[int, OpenCall] = {}
        self._just_issued: dict[int, OpenCall] = {}
        self._dropped: dict[OpenCall, None] = {}
        self._freed: deque[_Reference] = deque()
        self.waits = Waits(patches, self.open, self.ended, on_async, make_native)
        self._patched_types = self.waits.patched_types

    def follow(self, call: OpenCall, result: Any, args: tuple[Any, ...]) -> None:
        """Follow an operation that the backend has accepted."""
        try:
            plan = call.plan
            index = plan.operation.work
            boxed = result[1] if index > 0 else None if index < 0 else result
            if boxed is None:  # the call blocked until the operation was over
                self.ended(call, How.CALL)
                return
            # pybind gives the caller this same Python object as long as it lives, so its id is the key.
            call.work = work = _unbox(boxed)
            self.open[id(work)] = call
            if type(work) not in self._patched_types:
                self.waits.patch(type(work))
            if plan.is_background:
                self._follow_background(call, work, args)
        except Exception as error:
            self.ended(call, How.ABANDONED)
            if not guard.contains("operation returned", error):
                raise

    def _follow_background(self, call: OpenCall, work: Any, args: tuple[Any, ...]) -> None:
        flags = call.plan.flags
        if flags & _END_BY_WAIT:
            self._hold_for_caller(call, work)
        if flags & _ASYNC:
            self._map_tensors(call, args[0])
            self._on_async()

    def follow_coalesced(self, members: list[OpenCall], work: object) -> None:
        """Follow the Work that `_end_coalescing` returned for all operations issued since the start."""
        if not members:
            return
        head = members[0]
        head.members = members[1:]
        if work is None:
            self.ended(head, How.CALL)
            return
        head.work = work
        self.open[id(work)] = head
        if type(work) not in self._patched_types:
            self.waits.patch(type(work))
        if head.plan.is_background and head.flags & _END_BY_WAIT:
            self._hold_for_caller(head, work)
        self._on_async()

    def _hold_for_caller(self, call: OpenCall, work: object) -> None:
        """Hold a Work until this thread's next such call, so that the caller receives the same Python object."""
        call.work_id = id(work)
        call.reference = reference = _Reference(work, self._freed.append)
        reference.call = call
        thread = threading.get_ident()
        before = self._just_issued.get(thread)
        self._just_issued[thread] = call
        if before is not None:
            before.work = None

    def _release_issued(self) -> None:
        """Release Works that `_hold_for_caller` has held for `MAX_HOLD_NS`."""
        long_ago = _now() - MAX_HOLD_NS
        for call in list(self._just_issued.values()):
            if call.entered_ns < long_ago:
                call.work = None

    def _handle_dropped(self) -> None:
        """Handle Works that have been freed.

        The weak references call built-in code (`deque.append`). In Python code a signal handler could raise, and the
        interpreter drops exceptions in a destructor.
        """
        while self._freed:
            call = self._freed.popleft().call
            if call.reference is not None:
                self._work_dropped(call)

    def _work_dropped(self, call: OpenCall) -> None:
        """Handle a dropped Work. The program cannot wait for it, but c10d may hold it for a `wait_tensor`."""
        if not call.pointers:
            self.ended(call, How.ABANDONED)
            return
        call.reference = None
        if self.open.get(call.work_id) is call:
            self.open.pop(call.work_id, None)
        self._dropped[call] = None
        if len(self._dropped) > MAX_DROPPED:
            self.ended(next(iter(self._dropped)), How.ABANDONED)

    def _map_tensors(self, call: OpenCall, output: Any) -> None:
        """Map the output's addresses to the operation: `wait_tensor` names an operation only by its memory."""
        outputs: list[Any] = output if type(output) is LIST else [output]
        if outputs and type(outputs[0]) is LIST:
            return  # functional collectives pass no lists of lists
        pointers = tuple([tensor.data_ptr() for tensor in outputs[:MAX_MAPPED_TENSORS] if tensor.layout is _STRIDED])
        call.pointers = pointers
        for pointer in pointers:
            if self._dropped:
                before = self._by_tensor.get(pointer)
                if before in self._dropped:  # another operation reuses its memory: nobody will wait for it
                    self.ended(before, How.ABANDONED)
            self._by_tensor[pointer] = call

    def find_writer(self, tensor: Any) -> OpenCall | None:
        """Return the open operation that writes to `tensor`, if any."""
        return self._by_tensor.get(tensor.data_ptr()) if self._by_tensor and not tensor.is_meta else None

    def ended(self, call: OpenCall, how: How, error: BaseException | None = None) -> None:
        """Record the end of an operation, and release its Work."""
        now = _now()
        try:
            self._release(call)
            tape = call.tape
            failure = failure_word(tape.names, error) if error is not None else 0
            tape.complete(call.number, call.entered_ns, now, how, failure)
            for member in call.members or ():
                tape.complete(member.number, member.entered_ns, now, how, failure)
            if call.operation.synchronizing and how in (How.WAIT, How.POLL):
                call.group.synchronized = True
        except BaseException as our_error:
            for member in (call, *(call.members or ())):  # leave no record open
                member.tape.complete(member.number, member.entered_ns, now, how)
            if not guard.contains("completion", our_error):
                raise

    def _release(self, call: OpenCall) -> None:
        for pointer in call.pointers:
            if self._by_tensor.get(pointer) is call:
                self._by_tensor.pop(pointer, None)
        if self._dropped:
            self._dropped.pop(call, None)
        identity = call.work_id or id(call.work)
        if self.open.get(identity) is call:
            self.open.pop(identity, None)
        call.work = None
        if call.work_id:
            call.reference = None

    @guard.calls_plug_ins
    def sweep(self, limit: int) -> int:
        """Poll the oldest `limit` operations, and record the ends of complete ones.

        Returns:
            The number of pollable operations still in flight.
        """
        in_flight = 0
        if self._freed:
            self._handle_dropped()
        for call in self._oldest_open(limit):
            work = call.work
            if work is None or call.flags & _END_BY_WAIT:
                continue
            try:
                is_over = work.is_completed()
            except Exception as error:
                guard.pass_on(error)
                self._cannot_report(call, work)
                continue
            if is_over:
                self._completed(call, work)
            elif call.group.signatures.only_wait_ends:
                self._cannot_report(call, work)
            else:
                in_flight += 1
        return in_flight

    def beat(self, recorder: Recorder) -> None:
        """Poll, and release Works that were held for their callers."""
        self.sweep(SWEEP_LIMIT)
        self._release_issued()

    def poll(self) -> bool:
        """Record ended operations. Return whether pollable operations are still in flight."""
        return self.sweep(SWEEP_LIMIT) > 0

    def stops(self, *, has_failed: bool) -> None:
        """Poll for up to `SETTLE_S` while pollable operations are in flight.

        DDP may have an operation's result before its Work is complete: gloo completes the future first.
        """
        if has_failed:
            return
        deadline = time.monotonic() + SETTLE_S
        while self.sweep(SWEEP_LIMIT) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def ends(self, recorder: Recorder) -> None:
        """Poll one last time, and release everything."""
        self.sweep(SWEEP_LIMIT)
        self.forget_all()

    def leave_groups(self) -> None:
        """Poll for a while, and release everything."""
        self.stops(has_failed=False)
        self.forget_all()

    def forget_in_child(self) -> None:
        """Release everything."""
        self.forget_all()

    def _cannot_report(self, call: OpenCall, work: object) -> None:
        """Handle a Work that cannot report completion: from now on, its group's operations end by waits only."""
        call.group.end_by_wait()
        if call.entered_ns < _now() - MAX_HOLD_NS:  # its caller has it by now
            call.work_id = id(work)
            call.reference = reference = _Reference(work, self._freed.append)
            reference.call = call
            call.work = None

    def _oldest_open(self, limit: int) -> list[OpenCall]:
        try:
            return list(itertools.islice(self.open.values(), limit))
        except RuntimeError as error:  # a garbage collection removed a dropped Work from the table
            guard.pass_on(error)
            return []

    def _completed(self, call: OpenCall, work: Any) -> None:
        """Record the end of a Work that a poll found complete. Only its future shows whether a peer died."""
        error = failure_of(work) if type(work) is Work else None
        self.ended(call, How.POLL if error is None else How.FAILED, error)

    def forget_all(self) -> None:
        """Release everything; the operations stay open on their tapes."""
        for table in (self.open, self._by_tensor, self._just_issued, self._dropped, self._freed):
            table.clear()


@guard.calls_plug_ins
def failure_of(work: Any) -> Exception | None:
    """Return the exception of a completed Work of torch, without the deprecated `Work.exception`."""
    try:
        future = work.get_future()
    except Exception as error:  # the backend has no futures
        guard.pass_on(error)
        return None
    try:
        if future.done():
            future.value()
    except Exception as error:
        guard.pass_on(error)
        return error
    return None
