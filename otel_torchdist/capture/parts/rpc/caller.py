"""Records calls on the side of their caller.

A call passes `_enable_rpc_profiler`, which is given its function, and then one of six functions that send it. The end
is where a wait for its future returns, or where a poll finds that it is done. Its callbacks are not used: they would
take the GIL on one of RPC's threads, and nearly double what a short call takes.
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
from otel_torchdist.model.kinds import ActivityKind, CallMode, How

if TYPE_CHECKING:
    from otel_torchdist.capture.core.call_sites import CallSiteKey
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.parts.rpc.torch_rpc import TorchRpc

MAX_PREPARED: Final = 4096
MAX_FOLLOWED: Final = 16_384
"""Calls in flight whose ends are looked for."""
SWEEP_LIMIT: Final = 1024
YOUNG_NS: Final = 10_000_000_000
"""Up to this age a call is polled as operations are, then once a second: it may last as long as training."""


class _Next(threading.local):
    """What the calling thread is about to call: function, mode, worker."""

    call: tuple[str, CallMode, Any] | None = None


class CallerSide:
    """The calls that this process makes.

    Attributes:
        recorder: Where they are recorded; None while they are not.
        worker: This worker's id.
    """

    def __init__(self, poll_soon: Callable[[], None], call_begins: Callable[[], None], serving: Serving) -> None:
        """Record nothing yet.

        Args:
            poll_soon: Called when a call is left in flight, after which `sweep` is called soon.
            call_begins: Called before each call.
            serving: What the calling thread serves.
        """
        self._serving = serving
        self.recorder: Recorder | None = None
        self.worker = -1
        self.poll_soon = poll_soon
        self._call_begins = call_begins
        self._next = _Next()
        self._open: dict[int, RecordedCall] = {}
        self._prepared: dict[tuple[str, CallMode, int, CallSiteKey, int, int], tuple[CallFacts, bytes]] = {}
        self._modes: dict[Any, CallMode] = {}

    def make_announcement(self, original: Callable[..., Any], rpc: TorchRpc) -> Callable[..., Any]:
        """Make the replacement of `_enable_rpc_profiler`."""
        modes = {rpc.sync: CallMode.SYNC, rpc.remote: CallMode.REMOTE}

        def enable_rpc_profiler(
            should_profile: Any, builtin: Any, function: Any, mode: Any, worker: Any, *others: Any
        ) -> Any:
            try:
                self._next.call = None
                if self.recorder is not None and not is_internal(function):
                    arguments = arguments_of(_caller()) if is_on_object(function) else None
                    self._next.call = builtin or name_of(function, arguments), modes.get(mode, CallMode.ASYNC), worker
            except Exception as error:
                guard.report("a remote call", error)
            return original(should_profile, builtin, function, mode, worker, *others)

        return enable_rpc_profiler

    def make_invocation(self, original: Callable[..., Any], is_pickled: bool) -> Callable[..., Any]:
        """Make the replacement of a function that sends a call.

        Args:
            original: The function.
            is_pickled: Whether its second argument is a pickle, and it is given by position.
        """

        def invoke(*args: Any, **kwargs: Any) -> Any:
            coming = self._next.call
            if coming is None or self.recorder is None:
                return original(*args, **kwargs)
            self._next.call = None
            call = RecordedCall()
            try:
                try:
                    caller = self._begin(call, self.recorder, *coming)
                    if is_pickled and len(args[1]) <= MAX_PICKLE:
                        args = (args[0], args[1] + caller.encode(), *args[2:])
                except Exception as error:
                    guard.report("a remote call", error)
                result = original(*args, **kwargs)
                try:
                    self._follow(call, result, coming[1])
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
        """Make the replacement of a future's `wait`."""

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
        known = self._prepared.get(key)
        if known is None:
            if len(self._prepared) >= MAX_PREPARED:
                self._prepared.clear()
            name = recorder.call_paths.name_of(site)
            facts = CallFacts(ActivityKind.RPC_CLIENT, function, mode, int(worker.id), str(worker.name), name)
            known = self._prepared[key] = facts, facts.prepare(recorder, thread, step=served.step)
        call.begin(recorder, known[0], thread, known[1], served.number)
        step = recorder.step if served is NO_CALL else served.step
        return Caller(recorder.tape.identity.nonce, call.number, step, self.worker)

    def _follow(self, call: RecordedCall, result: Any, mode: CallMode) -> None:
        """Look for the end of a call that has been sent."""
        if not call.number:
            return
        if len(self._open) >= MAX_FOLLOWED:
            call.complete(How.UNTRACKED)
            return
        if mode is CallMode.REMOTE:  # the reference itself is the program's, and counted by torch
            call.future = future = result._get_future()
        else:
            future = result
            call.reference = weakref.ref(result)
        dropped = self._open.pop(id(future), None)  # a future that is gone had the same place in memory
        if dropped is not None:
            dropped.complete(How.ABANDONED)
        self._open[id(future)] = call
        if mode is not CallMode.SYNC:
            self.poll_soon()

    def sweep(self, of_all_ages: bool) -> bool:
        """Record the ends that can be seen now; returns whether calls are left that are polled often.

        Args:
            of_all_ages: Whether to look at old calls too.
        """
        young_ns = time.monotonic_ns() - YOUNG_NS
        is_any_young = False
        for key, call in list(self._open.items())[:SWEEP_LIMIT]:
            is_young = call.entered_ns > young_ns
            if not (is_young or of_all_ages):
                continue
            if _has_ended(call):
                self._open.pop(key, None)
            else:
                is_any_young |= is_young
        return is_any_young

    def forget_prepared(self) -> None:
        """Forget what was packed for the last tape."""
        self._prepared.clear()

    def continue_on(self, recorder: Recorder) -> None:
        """Record what is in flight on another tape."""
        for call in list(self._open.values()):
            call.continue_on(recorder)

    def forget_all(self) -> None:
        """Forget the calls in flight: there is no tape any more, or it is another process's."""
        self._open.clear()
        self.forget_prepared()


def _has_ended(call: RecordedCall) -> bool:
    future = call.future if call.reference is None else call.reference()
    if call.is_over:
        return True
    if future is None:  # the program has dropped it: its outcome cannot be observed
        call.complete(How.ABANDONED)
        return True
    if not future.done() or call.is_about_to_return():
        return False
    try:
        future.value()
    except Exception as error:  # the function's
        call.fail(error)
    else:
        call.complete(How.POLL)
    return True


def _caller() -> Any:
    """Return the frame that calls our caller."""
    return sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # its only name
