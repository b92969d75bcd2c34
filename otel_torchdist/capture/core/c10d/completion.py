"""Determines when operations on the CPU have ended.

The end is the earliest of: `Work.wait` returned, `wait_tensor` returned, `is_completed()` turned true (polled). Never a
future's callback in Python: gloo runs it with the GIL held *before* the operation counts as finished, and one in flight
at exit turns exit codes into SIGABRT. Some libraries bring their own Works, written in Python.
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
"""Open operations that are polled at once."""
SWEPT_PER_CALL: Final = 4
"""Open operations that a new call polls: with dense traffic, ends are then known more exactly than from the poller."""
MAX_MAPPED_TENSORS: Final = 64
MAX_DROPPED: Final = 32
"""Operations whose Work was dropped and for which `wait_tensor` may still be called; the tape keeps 64 open ones."""
ISSUED_NS: Final = 1_000_000_000
"""Maximum time for which a Work that must not be held is held: by then its caller certainly has it."""
SETTLE_S: Final = 0.05
_PAUSE_S: Final = 0.001

_END_BY_WAIT: Final = int(Flag.END_BY_WAIT)
_ASYNC: Final = int(Flag.ASYNC)
_STRIDED: Final = torch.strided
_now: Final = time.monotonic_ns
_unbox: Final = Work.unbox


class _Reference(weakref.ref[Any]):
    """Weak reference to a Work.

    Attributes:
        call: Its operation.
    """

    __slots__ = ("call",)

    call: OpenCall


class Works(SessionPart):
    """The operations whose end is not known yet.

    Attributes:
        open: The operations by the `id` of their Work.
        waits: Records waits for them.
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
            on_async: Called when an operation is left running.
            make_native: See `Waits`.
        """
        self._on_async = on_async
        self.open: dict[int, OpenCall] = {}
        self._by_tensor: dict[int, OpenCall] = {}
        self._just_issued: dict[int, OpenCall] = {}
        self._dropped: dict[OpenCall, None] = {}
        self._gone: deque[_Reference] = deque()
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
            if plan.is_left_alone:
                self._follow_left_alone(call, work, args)
        except Exception as error:
            self.ended(call, How.ABANDONED)
            if not guard.contains("operation returned", error):
                raise

    def _follow_left_alone(self, call: OpenCall, work: Any, args: tuple[Any, ...]) -> None:
        flags = call.plan.flags
        if flags & _END_BY_WAIT:
            self._hold_shortly(call, work)
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
        if head.plan.is_left_alone and head.flags & _END_BY_WAIT:
            self._hold_shortly(head, work)
        self._on_async()

    def _hold_shortly(self, call: OpenCall, work: object) -> None:
        """Hold a Work only until this thread's next such call, so that the caller gets this very object."""
        call.work_id = id(work)
        call.reference = reference = _Reference(work, self._gone.append)
        reference.call = call
        thread = threading.get_ident()
        before = self._just_issued.get(thread)
        self._just_issued[thread] = call
        if before is not None:
            before.work = None

    def _let_go_of_issued(self) -> None:
        """Release Works that are held only until their callers have them."""
        long_ago = _now() - ISSUED_NS
        for call in list(self._just_issued.values()):
            if call.entered_ns < long_ago:
                call.work = None

    def _handle_dropped(self) -> None:
        """Handle Works that have been freed.

        Their references call built-in code: if that ran Python, a signal handler could raise in it, and the interpreter
        drops exceptions raised in a destructor.
        """
        while self._gone:
            call = self._gone.popleft().call
            if call.reference is not None:
                self._work_dropped(call)

    def _work_dropped(self, call: OpenCall) -> None:
        """Handle a dropped Work: no one can wait for it, but c10d may have its own, whose `wait_tensor` we see."""
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
        """Map the memory that c10d's first argument writes to: `wait_tensor` names an operation by that memory."""
        outputs: list[Any] = output if type(output) is LIST else [output]
        if outputs and type(outputs[0]) is LIST:
            return  # lists of lists never come from functional collectives
        pointers = tuple([tensor.data_ptr() for tensor in outputs[:MAX_MAPPED_TENSORS] if tensor.layout is _STRIDED])
        call.pointers = pointers
        for pointer in pointers:
            if self._dropped:
                before = self._by_tensor.get(pointer)
                if before in self._dropped:  # another operation uses its memory now: no one will wait for it
                    self.ended(before, How.ABANDONED)
            self._by_tensor[pointer] = call

    def of_tensor(self, tensor: Any) -> OpenCall | None:
        """The open operation that writes to `tensor`, if any."""
        return self._by_tensor.get(tensor.data_ptr()) if self._by_tensor and not tensor.is_meta else None

    def ended(self, call: OpenCall, how: How, error: BaseException | None = None) -> None:
        """Record an end, however it was first observed, and release the Work."""
        now = _now()
        try:
            self._let_go(call)
            tape = call.tape
            failure = failure_word(tape.names, error) if error is not None else 0
            tape.complete(call.number, call.entered_ns, now, how, failure)
            for member in call.members or ():
                tape.complete(member.number, member.entered_ns, now, how, failure)
            if call.operation.synchronizing and how in (How.WAIT, How.POLL):
                call.group.synchronized = True
        except BaseException as own:
            for one in (call, *(call.members or ())):  # leave no record open, whatever has interrupted this
                one.tape.complete(one.number, one.entered_ns, now, how)
            if not guard.contains("completion", own):
                raise

    def _let_go(self, call: OpenCall) -> None:
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
        """Poll the oldest `limit` operations and record those that are complete.

        Returns:
            How many are still open and can be polled.
        """
        left = 0
        if self._gone:
            self._handle_dropped()
        for call in self._oldest(limit):
            work = call.work
            if work is None or call.flags & _END_BY_WAIT:
                continue
            try:
                is_over = work.is_completed()
            except Exception as error:
                guard.pass_on(error)
                self._cannot_say(call, work)
                continue
            if is_over:
                self._completed(call, work)
            elif call.group.signatures.only_wait_ends:
                self._cannot_say(call, work)
            else:
                left += 1
        return left

    def beat(self, recorder: Recorder) -> None:
        """Poll, and release Works that are held only until their callers have them."""
        self.sweep(SWEEP_LIMIT)
        self._let_go_of_issued()

    def poll(self) -> bool:
        """Record what has ended; return whether operations are open that can be polled."""
        return self.sweep(SWEEP_LIMIT) > 0

    def stops(self, *, has_failed: bool) -> None:
        """Poll for `SETTLE_S` while operations are open that can be polled.

        DDP may have got an operation's result before its Work is complete: gloo completes the future first.
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

    def _cannot_say(self, call: OpenCall, work: object) -> None:
        """Handle a Work that cannot report completion: only waits show its end and those of its group's others."""
        call.group.end_by_wait()
        if call.entered_ns < _now() - ISSUED_NS:  # by then its caller has it
            call.work_id = id(work)
            call.reference = reference = _Reference(work, self._gone.append)
            reference.call = call
            call.work = None

    def _oldest(self, limit: int) -> list[OpenCall]:
        try:
            return list(itertools.islice(self.open.values(), limit))
        except RuntimeError as error:  # the garbage collector ran meanwhile, and a dropped Work left the table
            guard.pass_on(error)
            return []

    def _completed(self, call: OpenCall, work: Any) -> None:
        """Record the end of a Work that a poll found complete; only its future shows whether its peer has died."""
        error = failure_of(work) if type(work) is Work else None
        self.ended(call, How.POLL if error is None else How.FAILED, error)

    def forget_all(self) -> None:
        """Release everything; the operations stay open on their tapes."""
        for table in (self.open, self._by_tensor, self._just_issued, self._dropped, self._gone):
            table.clear()


@guard.calls_plug_ins
def failure_of(work: Any) -> Exception | None:
    """Why a completed Work of torch's own failed; `Work.exception` would warn that it is deprecated."""
    try:
        future = work.get_future()
    except Exception as error:  # this backend has none
        guard.pass_on(error)
        return None
    try:
        if future.done():
            future.value()
    except Exception as error:
        guard.pass_on(error)
        return error
    return None
