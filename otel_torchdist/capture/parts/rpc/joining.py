"""Waits for `init_rpc`. The recording of remote calls is imported only then: most programs make none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from otel_torchdist import guard
from otel_torchdist.capture.core.failures import hide_frame
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.parts.rpc.torch_rpc import TorchRpc, first_missing_name, rpc_module
from otel_torchdist.capture.upstream import rpc as symbols

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.run.runs import Runs
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.capture.parts.rpc.workers import RpcWorkers


class RpcJoining(SessionPart):
    """The session part that records remote calls, once this process is an RPC worker."""

    def __init__(
        self, runs: Runs, poll_soon: Callable[[], None], call_begins: Callable[[], None], patches: Patches
    ) -> None:
        """Initialize without patches. See `CallerSide` for the arguments."""
        self._runs = runs
        self._poll_soon = poll_soon
        self._call_begins = call_begins
        self._patches = patches
        self._workers: RpcWorkers | None = None

    def hook(self, patches: Patches) -> None:
        """Patch `init_rpc`."""
        module = rpc_module()
        if module is not None:
            patches.replace(module, symbols.JOIN, self._make_init)

    def join_late(self) -> None:
        """Start recording if this process is a worker already. Called after the default group has begun its tape."""
        with guard.guarded("joining RPC"):
            if rpc_module() is not None and first_missing_name() is None and TorchRpc().agent is not None:
                self._begin().join_late(TorchRpc().agent)

    def unhook(self) -> None:
        """Stop recording. `patches` restores the patched functions."""
        if self._workers is not None:
            self._workers.unhook()

    def begins(self, recorder: Recorder) -> None:
        """Record calls, including those in flight, with a new recorder."""
        if self._workers is not None:
            self._workers.take_recorder(recorder)

    def beat(self, recorder: Recorder) -> None:
        """Record the ends of calls of all ages."""
        if self._workers is not None:
            self._workers.sweep(includes_old=True)

    def poll(self) -> bool:
        """Record the ends of calls; see `CallerSide.sweep`."""
        return self._workers is not None and self._workers.sweep()

    def ends(self, recorder: Recorder) -> None:
        """Record the ends of calls of all ages, and stop recording."""
        if self._workers is not None:
            self._workers.sweep(includes_old=True)
            self._workers.take_recorder(None)

    def forget_in_child(self) -> None:
        """Drop the parent's state."""
        if self._workers is not None:
            self._workers.forget_all()

    def _begin(self) -> RpcWorkers:
        if self._workers is None:
            from otel_torchdist.capture.parts.rpc.workers import RpcWorkers

            self._workers = RpcWorkers(self._runs, self._poll_soon, self._call_begins, self._patches)
        return self._workers

    def _make_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def init_rpc_backend(*args: Any, **kwargs: Any) -> Any:
            join = original
            with guard.guarded("joining RPC"):
                join = self._begin().make_init(original)
            try:
                return join(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise

        return init_rpc_backend
