"""Records the remote calls of this process, from `init_rpc` to `shutdown`."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_torchdist import guard
from otel_torchdist.capture.core.failures import hide_frame
from otel_torchdist.capture.parts.rpc.callee import CalleeSide
from otel_torchdist.capture.parts.rpc.caller import CallerSide
from otel_torchdist.capture.parts.rpc.calls import CallFacts, RecordedCall, Serving
from otel_torchdist.capture.parts.rpc.torch_rpc import INVOKES_NATIVE, INVOKES_PYTHON, TorchRpc, first_missing_name
from otel_torchdist.capture.upstream import rpc as symbols
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.names import SPARE_OF_LABELS

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.core.run.runs import Runs
    from otel_torchdist.capture.core.torch_api import Patches


class _Worker(NamedTuple):
    """This process as a worker: its id, its name, and its number of threads that serve calls."""

    rank: int
    name: str
    threads: int


class RpcWorkers:
    """The calls that this process makes and serves."""

    def __init__(
        self, runs: Runs, poll_soon: Callable[[], None], call_begins: Callable[[], None], patches: Patches
    ) -> None:
        """Initialize without patches. See `CallerSide` for the arguments."""
        serving = Serving()
        self.caller = CallerSide(poll_soon, call_begins, serving)
        self.callee = CalleeSide(serving)
        self._runs = runs
        self._patches = patches
        self._worker: _Worker | None = None
        self._is_following = False
        self._shutdown: RecordedCall | None = None

    def unhook(self) -> None:
        """Stop recording. `patches` restores the patched functions."""
        self._is_following = False
        self._worker = None

    def take_recorder(self, recorder: Recorder | None) -> None:
        """Record calls, including those in flight, with another recorder; None to stop recording."""
        if recorder is self.caller.recorder:
            return
        self.caller.forget_prepared()
        is_worker = self._worker is not None and recorder is not None
        self.caller.recorder = self.callee.recorder = recorder if is_worker else None
        if self._worker is not None and recorder is not None:
            self._publish_worker(recorder, self._worker)
            self.caller.continue_on(recorder)
            self.callee.continue_on(recorder)

    def sweep(self, includes_old: bool = False) -> bool:
        """Record the calls that have ended; see `CallerSide.sweep`."""
        return self.caller.sweep(includes_old)

    def forget_all(self) -> None:
        """Drop all state in a forked child."""
        self.caller.forget_all()
        self.callee.forget_all()
        self.caller.recorder = self.callee.recorder = None
        self._worker = self._shutdown = None

    # --- init_rpc -------------------------------------------------------------------------------------------------

    def make_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap torch's function that joins RPC."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init_rpc_backend(*args: Any, **kwargs: Any) -> Any:
            joining = RecordedCall()
            try:
                with guard.guarded("joining RPC"):
                    bound = signature.bind(*args, **kwargs)
                    bound.apply_defaults()
                    self._join(joining, bound.arguments)
                result = original(*args, **kwargs)
                with guard.guarded("joining RPC"):
                    joining.complete(How.CALL)
            except BaseException as error:
                joining.fail(error)
                with guard.guarded("joining RPC"):
                    self._leave()
                hide_frame(error)
                raise
            return result

        return init_rpc_backend

    def _join(self, joining: RecordedCall, arguments: dict[str, Any]) -> None:
        missing = first_missing_name()
        if missing is not None:
            missing.report()
            return
        options = arguments["rpc_backend_options"]
        worker = _Worker(int(arguments["rank"]), str(arguments["name"]), int(getattr(options, "num_worker_threads", 0)))
        recorder = self._begin(worker, arguments["world_size"], arguments["store"])
        if recorder is not None:
            _begin_interval(joining, recorder, ActivityKind.RPC_JOIN, worker.name)

    def join_late(self, agent: Any) -> None:
        """Start recording with an agent that existed before capture was installed."""
        info = agent.get_worker_info()
        worker = _Worker(int(info.id), str(info.name), 0)
        self._begin(worker, len(agent.get_worker_infos()), getattr(agent, "store", None))

    def _begin(self, worker: _Worker, world_size: int | None, store: Any) -> Recorder | None:
        if not self._is_following:
            self._is_following = True
            self._follow_calls(TorchRpc())
        recorder = self._runs.rpc_begins(worker.rank, world_size, store)
        self._worker = worker
        self.caller.worker = worker.rank
        self.take_recorder(recorder)
        return recorder

    def _follow_calls(self, rpc: TorchRpc) -> None:
        """Patch the functions that every call uses. Only workers make calls, so this waits for `init_rpc`."""
        replace, caller = self._patches.replace, self.caller
        replace(rpc.api, symbols.ENABLE_PROFILER, lambda original: caller.make_announcement(original, rpc))
        for symbol in (*INVOKES_PYTHON, *INVOKES_NATIVE):
            is_pickled = symbol in INVOKES_PYTHON
            replace(rpc.api, symbol, functools.partial(caller.make_invocation, is_pickled=is_pickled))
        replace(rpc.future_type, "wait", caller.make_wait)
        replace(rpc.pickler, "deserialize", lambda original: self.callee.make_deserialization(original, rpc))
        replace(rpc.api, symbols.WAIT_ALL_WORKERS, self._make_shutdown)
        replace(rpc.api, symbols.FINALIZE_SHUTDOWN, self._make_end)

    @staticmethod
    def _publish_worker(recorder: Recorder, worker: _Worker) -> None:
        recorder.tape.set_rpc_worker(recorder.tape.names.intern_optional(worker.name, SPARE_OF_LABELS), worker.threads)

    # --- shutdown -------------------------------------------------------------------------------------------------

    def _make_shutdown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wait_all_workers(*args: Any, **kwargs: Any) -> Any:
            self._shutdown = waiting = RecordedCall()
            try:
                with guard.guarded("shutdown of RPC"):
                    recorder, worker = self.caller.recorder, self._worker
                    if recorder is not None and worker is not None:
                        _begin_interval(waiting, recorder, ActivityKind.RPC_SHUTDOWN, worker.name)
                return original(*args, **kwargs)
            except BaseException as error:
                waiting.fail(error)
                hide_frame(error)
                raise

        return wait_all_workers

    def _make_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def finalize_shutdown(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                with guard.guarded("shutdown of RPC"):
                    self._leave()

        return finalize_shutdown

    def _leave(self) -> None:
        self.sweep(includes_old=True)
        shutdown, self._shutdown = self._shutdown, None
        if shutdown is not None:
            shutdown.complete(How.CALL)
        self._worker = None
        self.take_recorder(None)
        self.caller.forget_all()
        self.callee.forget_all()
        self._runs.rpc_ended()


def _begin_interval(interval: RecordedCall, recorder: Recorder, kind: ActivityKind, name: str) -> None:
    thread = threading.get_native_id()
    facts = CallFacts(kind, name)
    interval.begin(recorder, facts, thread, facts.prepare(recorder, thread))
