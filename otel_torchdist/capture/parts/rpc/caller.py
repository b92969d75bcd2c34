"""Records remote calls on the caller.

A call passes `_enable_rpc_profiler`, which receives its function, and then one of six functions that send it. It ends
when a wait for its future returns, or when a poll finds the future done. Callbacks of the future are not used: they
would take the GIL on an RPC thread, which nearly doubles the time of a short call.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.failures import hide_frame
from otel_torchdist.capture.parts.rpc.calls import (
    MAX_PICKLE,
    NO_CALL,
    Caller,
    CallFacts,
    RecordedCall,
    Serving,
    arguments_of,
    is_internal,
    is_on_object,
    name_of,
)
from otel_torchdist.capture.upstream import rpc as symbols
from otel_torchdist.model.kinds import ActivityKind, CallMode, How

if TYPE_CHECKING:
    from otel_torchdist.capture.core.call_sites import CallSiteKey
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.parts.rpc.torch_rpc import TorchRpc

MAX_PREPARED: Final = 4096
MAX_FOLLOWED: Final = 16_384
"""Maximum number of calls in flight whose ends are recorded."""
SWEEP_LIMIT: Final = 1024
MAX_YOUNG_NS: Final = 10_000_000_000
"""Maximum age in ns of a call that is polled as often as operations. Older calls are polled once a second."""


class _Announced(threading.local):
    """The announced call of the calling thread: function, mode, worker."""

    call: tuple[str, CallMode, Any] | None = None


class CallerSide:
    """The calls that this process makes.

    Attributes:
        recorder: The current recorder, or None.
        worker: This worker's id.
    """

    def __init__(self, poll_soon: Callable[[], None], call_begins: Callable[[], None], serving: Serving) -> None:
        """Initialize without a recorder.

        Args:
            poll_soon: Schedules calls of `sweep`. Called for each asynchronous call.
            call_begins: Called before each call.
            serving: The call that the calling thread serves.
        """
        self._serving = serving
        self.recorder: Recorder | None = None
        self.worker = -1
        self.poll_soon = poll_soon
        self._call_begins = call_begins
        self._announced = _Announced()
        self._open: dict[int, RecordedCall] = {}
        self._prepared: dict[tuple[str, CallMode, int, CallSiteKey, int, int], tuple[CallFacts, bytes]] = {}
        self._modes: dict[Any, CallMode] = {}

    def make_announcement(self, original: Callable[..., Any], rpc: TorchRpc) -> Callable[..., Any]:
        """Wrap `_enable_rpc_profiler`."""
        modes = {rpc.sync: CallMode.SYNC, rpc.remote: CallMode.REMOTE}

        def enable_rpc_profiler(
            should_profile: Any, builtin: Any, function: Any, mode: Any, worker: Any, *others: Any
        ) -> Any:
            try:
                self._announced.call = None
                if self.recorder is not None and not is_internal(function):
                    arguments = arguments_of(_caller()) if is_on_object(function) else None
                    self._announced.call = (
                        builtin or name_of(function, arguments),
                        modes.get(mode, CallMode.ASYNC),
                        worker,
                    )
            except Exception as error:
                guard.report("a remote call", error)
            return original(should_profile, builtin, function, mode, worker, *others)

        return enable_rpc_profiler

    def make_invocation(self, original: Callable[..., Any], is_pickled: bool) -> Callable[..., Any]:
        """Wrap a function that sends a call.

        Args:
            original: The function.
            is_pickled: Whether its second positional argument is a pickle.
        """

        def invoke(*args: Any, **kwargs: Any) -> Any:
            announced = self._announced.call
            if announced is None or self.recorder is None:
                return original(*args, **kwargs)
            self._announced.call = None
            call = RecordedCall()
            try:
                try:
                    caller = self._begin(call, self.recorder, *announced)
                    if is_pickled and len(args[1]) <= MAX_PICKLE:
                        args = (args[0], args[1] + caller.encode(), *args[2:])
                except Exception as error:
                    guard.report("a remote call", error)
                result = original(*args, **kwargs)
                try:
                    self._follow(call, result, announced[1])
                except Exception as error:
                    call.complete(How.ABANDONED)
                    guard.report("a remote call", error)
            except BaseException as error:
                call.fail(error)
                hide_frame(error)
                raise
            return result

        return invoke

    def make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the `wait` of futures."""

        def wait(future: Any) -> Any:
            call = self._open.get(id(future))
            if call is None or call.reference is None or call.reference() is not future:
                return original(future)
            try:
                try:
                    call.wait_begins()
                except Exception as error:
                    guard.report("a remote call", error)
                result = original(future)
                try:
                    call.complete(How.WAIT)
                except Exception as error:
                    guard.report("the end of a remote call", error)
                self._open.pop(id(future), None)
            except BaseException as error:
                call.fail(error)
                self._open.pop(id(future), None)
                hide_frame(error)
                raise
            return result

        return wait

    def _begin(self, call: RecordedCall, recorder: Recorder, function: str, mode: CallMode, worker: Any) -> Caller:
        self._call_begins()
        thread = threading.get_native_id()
        served = self._serving.call
        site = recorder.call_sites.find(0)
        key = (function, mode, worker.id, site, thread, served.step)
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= MAX_PREPARED:
                self._prepared.clear()
            name = recorder.call_paths.name_of(site)
            facts = CallFacts(ActivityKind.RPC_CLIENT, function, mode, int(worker.id), str(worker.name), name)
            prepared = self._prepared[key] = facts, facts.prepare(recorder, thread, step=served.step)
        call.begin(recorder, prepared[0], thread, prepared[1], served.number)
        step = recorder.step if served is NO_CALL else served.step
        return Caller(recorder.tape.identity.nonce, call.number, step, self.worker)

    def _follow(self, call: RecordedCall, result: Any, mode: CallMode) -> None:
        """Follow a sent call to its end."""
        if not call.number:
            return
        if len(self._open) >= MAX_FOLLOWED:
            call.complete(How.UNTRACKED)
            return
        if mode is CallMode.REMOTE:  # the program holds the RRef, and torch counts its references
            get_future = symbols.REMOTE_FUTURE.of(result)
            if get_future is None:
                call.complete(How.UNTRACKED)
                return
            call.future = future = get_future()
        else:
            future = result
            call.reference = weakref.ref(result)
        dropped = self._open.pop(id(future), None)  # a freed future had the same address
        if dropped is not None:
            dropped.complete(How.ABANDONED)
        self._open[id(future)] = call
        if mode is not CallMode.SYNC:
            self.poll_soon()

    def sweep(self, includes_old: bool) -> bool:
        """Record the calls that have ended. Return whether young calls are in flight.

        Args:
            includes_old: Whether to check old calls, too.
        """
        oldest_young_ns = time.monotonic_ns() - MAX_YOUNG_NS
        is_any_young = False
        for key, call in list(self._open.items())[:SWEEP_LIMIT]:
            is_young = call.entered_ns > oldest_young_ns
            if not (is_young or includes_old):
                continue
            if _has_ended(call):
                self._open.pop(key, None)
            else:
                is_any_young |= is_young
        return is_any_young

    def forget_prepared(self) -> None:
        """Drop the prepared records of the last tape."""
        self._prepared.clear()

    def continue_on(self, recorder: Recorder) -> None:
        """Continue the records of calls in flight on another tape."""
        for call in list(self._open.values()):
            call.continue_on(recorder)

    def forget_all(self) -> None:
        """Drop the calls in flight: the tape has ended, or belongs to another process."""
        self._open.clear()
        self.forget_prepared()


def _has_ended(call: RecordedCall) -> bool:
    future = call.future if call.reference is None else call.reference()
    if call.is_over:
        return True
    if future is None:  # the program has dropped the future: the result cannot be observed
        call.complete(How.ABANDONED)
        return True
    if not future.done() or call.is_about_to_return():
        return False
    try:
        future.value()
    except Exception as error:  # raised by the function
        call.fail(error)
    else:
        call.complete(How.POLL)
    return True


def _caller() -> Any:
    """Return the frame of our caller's caller."""
    return sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # it has no public name
