"""Records remote calls on the callee, the worker that runs the function.

C++ unpickles a request with `deserialize`, and passes its function to a thread, perhaps a different thread. So the
caller's data is attached to the function. TorchScript and built-in functions run without Python, and are not recorded.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.failures import hide_frame
from otel_torchdist.capture.parts.rpc.calls import (
    Caller,
    CallFacts,
    RecordedCall,
    ServedCall,
    Serving,
    caller_in,
    is_internal,
    name_of,
)
from otel_torchdist.capture.upstream import rpc as symbols
from otel_torchdist.model.kinds import ActivityKind, How
from otel_torchdist.model.remote_calls import NO_WORKER

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.parts.rpc.torch_rpc import TorchRpc

MAX_NAMES: Final = 4096


class CalleeSide:
    """The calls that this process serves.

    Attributes:
        recorder: The current recorder, or None.
        serving: The call that the calling thread serves.
    """

    def __init__(self, serving: Serving) -> None:
        """Initialize without a recorder. `serving` receives the served call of each thread."""
        self.serving = serving
        self.recorder: Recorder | None = None
        self._open: dict[int, RecordedCall] = {}
        self._names: dict[int, str] = {}

    def make_deserialization(self, original: Callable[..., Any], rpc: TorchRpc) -> Callable[..., Any]:
        """Wrap the pickler's `deserialize`."""

        def deserialize(binary_data: Any, tensor_table: Any) -> Any:
            try:
                result = original(binary_data, tensor_table)
            except BaseException as error:
                hide_frame(error)
                raise
            if type(result) is not rpc.function_type or self.recorder is None:
                return result
            try:
                return self._served(result, binary_data, rpc)
            except Exception as error:
                guard.report("a served call", error)
                return result

        return deserialize

    def _served(self, request: Any, data: bytes, rpc: TorchRpc) -> Any:
        if is_internal(request.func):
            return request
        caller = caller_in(data)
        worker = caller.worker if caller is not None else NO_WORKER
        facts = CallFacts(
            ActivityKind.RPC_SERVER,
            name_of(request.func, request.args),
            worker=worker,
            worker_name=self._name_of(worker, rpc),
        )
        return request._replace(func=ServedFunction(self, request.func, facts, caller))

    def _name_of(self, worker: int, rpc: TorchRpc) -> str:
        if worker < 0:
            return ""
        name = self._names.get(worker)
        if name is None:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            name = self._names[worker] = str(rpc.agent.get_worker_info(worker).name)
        return name

    def begin(self, call: RecordedCall, facts: CallFacts, caller: Caller | None) -> None:
        """Record that the calling thread begins to run a function."""
        recorder = self.recorder
        if recorder is None:
            return
        thread = threading.get_native_id()
        nonce, number, step, _ = caller or Caller(0, 0, 0, NO_WORKER)
        self._open[id(call)] = call
        call.begin(recorder, facts, thread, facts.prepare(recorder, thread, nonce, step), number)
        self.serving.call = ServedCall(call.number, step if caller is not None else recorder.step)

    def end(self, call: RecordedCall) -> None:
        """Remove a call that has ended."""
        self._open.pop(id(call), None)

    def continue_on(self, recorder: Recorder) -> None:
        """Continue the records of served calls on another tape."""
        for call in list(self._open.values()):
            call.continue_on(recorder)

    def forget_all(self) -> None:
        """Drop all served calls: the tape has ended, or belongs to another process."""
        self._open.clear()
        self._names.clear()


class ServedFunction:
    """A recording wrapper around the function of a request."""

    __slots__ = ("_caller", "_facts", "_function", "_side")

    def __init__(self, side: CalleeSide, function: Any, facts: CallFacts, caller: Caller | None) -> None:
        self._side = side
        self._function = function
        self._facts = facts
        self._caller = caller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function."""
        call, serving = RecordedCall(), self._side.serving
        before = serving.call
        try:
            try:
                self._side.begin(call, self._facts, self._caller)
            except Exception as error:
                guard.report("a served call", error)
            result = self._function(*args, **kwargs)
        except BaseException as error:
            serving.call = before
            self._side.end(call)
            call.fail(error)
            hide_frame(error)
            raise
        serving.call = before
        try:
            self._returned(call, result)
        except Exception as error:
            guard.report("a served call", error)
        return result

    def _returned(self, call: RecordedCall, result: Any) -> None:
        add_done_callback = getattr(result, "add_done_callback", None)
        if add_done_callback is None or not hasattr(self._function, symbols.ASYNC_FUNCTION.name):
            self._side.end(call)
            call.complete(How.CALL)
            return
        call.returned()
        # Python code sets the result, so the callback costs little. It holds no tensor.
        add_done_callback(functools.partial(self._has_result, call))

    @guard.guarded("a served call")
    def _has_result(self, call: RecordedCall, future: Any) -> None:
        self._side.end(call)
        try:
            future.value()
        except Exception as error:  # raised by the function
            call.fail(error)
        else:
            call.complete(How.CALL)
