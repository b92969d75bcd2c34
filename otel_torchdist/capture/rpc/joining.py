"""Waits for this process to join RPC. What records calls is imported only then: most programs make none."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from otel_torchdist import guard
from otel_torchdist.capture.rpc.torch_rpc import TorchRpc, missing_parts, rpc_module
from otel_torchdist.capture.tracebacks import hide_frame

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder
    from otel_torchdist.capture.rpc.workers import RpcEvents, RpcWorkers
    from otel_torchdist.capture.torch_api import Patches


class RpcJoining:
    """Stands for `RpcWorkers` until this process is one of them; the methods are theirs."""

    def __init__(
        self, events: RpcEvents, poll_soon: Callable[[], None], call_begins: Callable[[], None], patches: Patches
    ) -> None:
        """Replace nothing yet; see `CallerSide` for the arguments."""
        self._events = events
        self._poll_soon = poll_soon
        self._call_begins = call_begins
        self._patches = patches
        self._workers: RpcWorkers | None = None

    def hook(self) -> None:
        """Wait for `init_rpc`, or begin at once if this process is a worker already."""
        module = rpc_module()
        if module is None:
            return
        self._patches.replace(module, "_init_rpc_backend", self._make_init)
        with guard.guarded("joining RPC"):
            if not missing_parts() and TorchRpc().agent is not None:
                self._begin().join_late(TorchRpc().agent)

    def unhook(self) -> None:
        """Record nothing any more; what was replaced is restored by its owner."""
        if self._workers is not None:
            self._workers.unhook()

    def take_recorder(self, recorder: Recorder | None) -> None:
        """Record calls with another recorder from now on, those in flight too; None for none."""
        if self._workers is not None:
            self._workers.take_recorder(recorder)

    def sweep(self, of_all_ages: bool = False) -> bool:
        """See `CallerSide.sweep`."""
        return self._workers is not None and self._workers.sweep(of_all_ages)

    def after_fork_in_child(self, poll_soon: Callable[[], None]) -> None:
        """Forget everything, because this is a new process, with another thread that polls."""
        self._poll_soon = poll_soon
        if self._workers is not None:
            self._workers.caller.poll_soon = poll_soon
            self._workers.forget_all()

    def _begin(self) -> RpcWorkers:
        if self._workers is None:
            from otel_torchdist.capture.rpc.workers import RpcWorkers

            self._workers = RpcWorkers(self._events, self._poll_soon, self._call_begins, self._patches)
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
