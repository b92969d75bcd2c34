"""Records waits for operations on the CPU. The end of a wait is the operation's end, unless it was observed before.

`Work.wait` is patched in every class that defines it: some libraries bring Works written in Python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from torch.distributed import Work

from otel_torchdist import guard
from otel_torchdist.capture.core.failures import hide_frame
from otel_torchdist.capture.core.part import RecordingPart
from otel_torchdist.capture.core.torch_api import Patches
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.tape.layout import Word

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import OpenCall, Plan
    from otel_torchdist.capture.core.recorder import Recorder

_END_BY_WAIT: Final = int(Flag.END_BY_WAIT)
_CANNOT_PROBE: Final = int(Flag.END_BY_WAIT | Flag.COALESCED)
_BY_WAIT: Final = int(How.WAIT)

BEFORE: Final = 0
INSIDE: Final = 1
AFTER: Final = 2
"""Stages of a wait."""

_now: Final = time.monotonic_ns


class Waits:
    """Recorder of waits.

    Attributes:
        patched_types: Classes with a patched `wait`.
    """

    def __init__(
        self,
        patches: Patches,
        open_calls: dict[int, OpenCall],
        ended: Callable[..., None],
        on_open: Callable[[], None],
        make_native: Callable[[tuple[Any, Any]], Any] | None,
    ) -> None:
        """Patch `Work.wait`.

        Args:
            patches: Replaces methods, and restores them later.
            open_calls: Operations in flight, by the `id` of their Work.
            ended: See `Works.ended`.
            on_open: Called when a wait timed out and its operation is still in flight.
            make_native: Makes a C method from our method and the original; None without the native library.
        """
        self._patches = patches
        self._open = open_calls
        self._ended = ended
        self._on_open = on_open
        self._make_native = make_native
        self.patched_types: set[type] = set()
        self.patch(Work)

    def patch(self, cls: type[Any]) -> None:
        """Patch `wait` in the class and its bases that define it, such as FakeWork."""
        for owner in cls.__mro__:
            if owner in self.patched_types or "wait" not in vars(owner):
                continue
            self._patches.replace(owner, "wait", self._make_wait, make_native=self._make_native)
            self.patched_types.add(owner)
        self.patched_types.add(cls)

    def _make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        find, take = self._open.get, self._open.pop
        began, failed, interrupted, ended = self.began, self.failed, self.interrupted, self._ended

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            call = find(id(work))
            if call is None:
                return original(work, *args, **kwargs)
            plan = call.plan
            stage = BEFORE
            result = None
            try:  # a signal handler may raise at any call here
                take(id(work), None)
                if plan.is_background:
                    began(call)
                stage = INSIDE
                result = original(work, *args, **kwargs) if args or kwargs else original(work)
                stage = AFTER
                if not plan.is_plain:
                    ended(call, How.WAIT)
                    if not plan.group.is_probed:
                        self._probe_completion(plan, work)
                    return result
                now = _now()  # most operations end here, so this is as short as possible
                call.work = None
                call.tape.complete(call.number, call.entered_ns, now, _BY_WAIT)
                if plan.operation.synchronizing:
                    plan.group.synchronized = True
            except BaseException as error:
                if stage == INSIDE:
                    failed(call, error, work)
                    raise
                interrupted(call, work, stage == AFTER)
                if not guard.contains("Work.wait", error):
                    raise
            return result

        return wait

    def began(self, call: OpenCall) -> None:
        """Record that the calling thread is about to wait for an operation, perhaps again after a timeout."""
        try:
            if call.gave_up:
                for member in (call, *(call.members or ())):
                    member.tape.clear(member.number, Word.WAIT_RETURNED)
                return
            now = _now()
            call.tape.mark(call.number, Word.WAIT_ENTERED, now - call.entered_ns, How.CALL)
            for member in call.members or ():
                member.tape.mark(member.number, Word.WAIT_ENTERED, now - member.entered_ns, How.CALL)
        except Exception as error:
            guard.report("Work.wait", error)

    def failed(self, call: OpenCall, error: BaseException, work: Any = None) -> None:
        """Record a wait that raised. The call itself has returned, because the operation was issued.

        Args:
            call: The operation.
            error: What the wait raised.
            work: The Work, if known.
        """
        try:
            if guard.came_after_call(error):  # the wait had returned when a signal handler raised
                self._ended(call, How.WAIT)
                return
            now = _now()
            members = (call, *(call.members or ()))
            if not call.plan.is_background:
                for member in members:
                    member.tape.mark(member.number, Word.RETURNED, now - member.entered_ns, How.CALL)
            if work is None or call.flags & _END_BY_WAIT or not is_in_flight(work):
                self._ended(call, How.FAILED, error)
                return
            # Only the wait timed out. The operation is in flight and may be waited for again.
            for member in members:
                member.tape.mark(member.number, Word.WAIT_RETURNED, now - member.entered_ns, How.WAIT)
            call.gave_up = True
            self._open[id(work)] = call
            self._on_open()
        except BaseException as our_error:
            if not guard.contains("Work.wait", our_error):
                raise

    def interrupted(self, call: OpenCall, work: Any, has_returned: bool) -> None:
        """Handle an exception raised right before or after a wait.

        Args:
            call: The operation.
            work: Its Work.
            has_returned: Whether the wait had returned. Otherwise it had not begun.
        """
        if not has_returned and call.plan.is_background:
            self._open[id(work)] = call  # the holder of the Work may wait again
            return
        self._ended(call, How.WAIT if has_returned else How.ABANDONED)

    def _probe_completion(self, plan: Plan, work: Any) -> None:
        """Check, after a wait has returned, whether the Works of this backend report completion.

        torch only calls the C++ base of a Work written in Python. torchcomms' Works do not override `isCompleted`, so
        torch never reports them as complete.
        """
        if plan.flags & _CANNOT_PROBE:
            return
        plan.group.is_probed = True
        if is_in_flight(work):
            plan.group.end_by_wait()


@guard.calls_plug_ins
def is_in_flight(work: Any) -> bool:
    """Return whether a Work reports that its operation is in flight; False if it cannot report that."""
    try:
        return not work.is_completed()
    except Exception as error:
        guard.pass_on(error)
        return False


class FutureWaits(RecordingPart):
    """The session part that records waits for futures, such as the future that `Work.get_future` returns.

    The record does not say which operation the thread waits for. `torch.futures.Future` is a subclass: its `wait` calls
    the method that is patched here.
    """

    def hook(self, patches: Patches) -> None:
        """Patch `wait` of all futures."""
        patches.replace(core.FUTURE.find(), "wait", self._make_wait)

    def _make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(future: Any) -> Any:
            recorder = None if future.done() else self.recorder
            try:
                if recorder is not None:
                    self._begins(recorder)
                return original(future)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if recorder is not None:
                    self._ends(recorder)

        return wait

    def _begins(self, recorder: Recorder) -> None:
        try:
            recorder.tape.begin_future(threading.get_native_id(), time.monotonic_ns())
        except Exception as error:
            guard.report("Future.wait", error)

    def _ends(self, recorder: Recorder) -> None:
        try:
            recorder.tape.end_future(threading.get_native_id())
        except Exception as error:
            guard.report("Future.wait", error)
