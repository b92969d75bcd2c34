"""Records of remote calls, common to caller and callee: the function, data in the request, and state of the record."""

from __future__ import annotations

import struct
import threading
import time
import weakref
from functools import partial
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from otel_torchdist import guard
from otel_torchdist.capture.core.intervals import RecordedInterval
from otel_torchdist.capture.upstream import rpc as symbols
from otel_torchdist.model.kinds import ActivityKind, CallMode, How
from otel_torchdist.model.names import SPARE_OF_LABELS
from otel_torchdist.model.remote_calls import NO_WORKER, RemoteCall
from otel_torchdist.tape.layout import Word, prepare_call

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.tape.writer import TapeWriter

_INTERNAL: Final = frozenset({symbols.INVOKE_PYTHON.module, symbols.UTILS.path})
"""Modules whose functions torch calls itself, for `shutdown` and for the type of a remote object."""
_ON_OBJECT: Final = "torch.distributed.rpc.rref_proxy"
"""Module of the functions that call a method of a remote object. Their second argument is the method's name."""
MAX_NAME: Final = 200


def is_internal(function: Any) -> bool:
    """Return whether torch calls this function internally."""
    return getattr(function, "__module__", None) in _INTERNAL


def is_on_object(function: Any) -> bool:
    """Return whether this function calls a method of a remote object."""
    return getattr(function, "__module__", None) == _ON_OBJECT


def name_of(function: Any, arguments: Any = None) -> str:
    """Return the name of a function (`Optimizer.step`) or of a method of a remote object (`RRef.step`).

    Args:
        function: Any callable.
        arguments: Its arguments, if `is_on_object` is true.
    """
    if type(function) is FunctionType:
        if function.__module__ == _ON_OBJECT and type(arguments) is tuple and len(cast("Any", arguments)) > 1:
            return f"RRef.{cast('Any', arguments)[1]}"[:MAX_NAME]
        return function.__qualname__[:MAX_NAME]
    while type(function) is partial:
        function = cast("partial[Any]", function).func
    names = (getattr(function, name, None) for name in ("qualified_name", "__qualname__"))  # the first is TorchScript's
    name = next((name for name in names if type(name) is str), None)
    return (name or type(function).__qualname__).removeprefix("__torch__.")[:MAX_NAME]


def arguments_of(frame: FrameType) -> Any:
    """Return the arguments of a call from torch's frame that is about to send it."""
    return frame.f_locals.get("args")


_FORMAT: Final = struct.Struct("<QQQiB7s")
_VERSION: Final = 1
_MAGIC: Final = b"otd-rpc"
MAX_PICKLE: Final = 16 << 20
"""Maximum size of a pickle that data is appended to, because that copies it. Tensors are not part of a pickle."""


class Caller(NamedTuple):
    """The caller's data in a request.

    Attributes:
        nonce: Nonce of the caller's tape.
        number: Number of the caller's record.
        step: The caller's step.
        worker: The caller's worker id.
    """

    nonce: int
    number: int
    step: int
    worker: int

    def encode(self) -> bytes:
        """Pack the data."""
        return _FORMAT.pack(*self, _VERSION, _MAGIC)


def caller_in(request: bytes) -> Caller | None:
    """Return the caller's data in a request, or None if it was not recorded or has another version."""
    if not request.endswith(_MAGIC) or len(request) < _FORMAT.size:
        return None
    *caller, version, _ = _FORMAT.unpack_from(request, len(request) - _FORMAT.size)
    return Caller(*caller) if version == _VERSION else None


class ServedCall(NamedTuple):
    """A call that a thread serves.

    Attributes:
        number: Number of its record; 0 for none.
        step: Step of the first caller in the chain.
    """

    number: int
    step: int


NO_CALL = ServedCall(0, 0)


class Serving(threading.local):
    """The call that the calling thread serves."""

    call: ServedCall = NO_CALL


_now: Final = time.monotonic_ns


class CallFacts(NamedTuple):
    """The properties of a call that many calls share.

    Attributes:
        kind: Caller or callee.
        function: Name of the function.
        worker: Id of the other worker.
        worker_name: Its name; '' if unknown.
        call_site: Name id of the call site.
    """

    kind: ActivityKind
    function: str
    mode: CallMode = CallMode.UNKNOWN
    worker: int = NO_WORKER
    worker_name: str = ""
    call_site: int = 0

    def prepare(self, recorder: Recorder, thread: int, nonce: int = 0, step: int = 0) -> bytes:
        """Pack the facts for a tape, with the thread's native id, the caller's nonce, and the trace's step."""
        names = recorder.tape.names
        function = names.intern_optional(self.function, SPARE_OF_LABELS)
        worker_name = names.intern_optional(self.worker_name, SPARE_OF_LABELS) if self.worker_name else 0
        call = RemoteCall(self.worker, worker_name, self.call_site, self.mode, nonce, 0, max(step, 0))
        return prepare_call(self.kind, function, thread, call)


class RecordedCall:
    """A recorded call. The object exists before the record: a signal handler may raise at any moment.

    Attributes:
        entered_ns: Monotonic time at which it began.
        future: Its future, if that keeps no object of the program alive; otherwise None.
        reference: Weak reference to its future, which holds the result; None without one.
    """

    __slots__ = ("_facts", "_is_over", "_number", "_tape", "_thread", "_was_done", "entered_ns", "future", "reference")

    def __init__(self) -> None:
        self.entered_ns = 0
        self.future: Any = None
        self.reference: weakref.ref[Any] | None = None
        self._tape: TapeWriter | None = None
        self._number = 0
        self._is_over = False
        self._was_done = False
        self._facts: CallFacts | None = None
        self._thread = 0

    @property
    def number(self) -> int:
        """Number of its record; 0 without one."""
        return self._number

    @property
    def is_over(self) -> bool:
        """Whether its end has been recorded."""
        return self._is_over

    def begin(self, recorder: Recorder, facts: CallFacts, thread: int, prepared: bytes, sequence: int = 0) -> None:
        """Record the call as entered. `prepared` is the result of `facts.prepare` for this thread."""
        self._facts, self._thread = facts, thread
        self._tape = tape = recorder.tape
        self.entered_ns = entered_ns = _now()
        interval = RecordedInterval(tape, entered_ns)
        try:
            interval.begin(recorder.step, sequence, prepared)
        finally:
            self._number = interval.number

    def is_about_to_return(self) -> bool:
        """Return whether the future of a synchronous call has just completed, so that its thread will record the end.

        Returns False on the second call: the thread has not recorded the end, perhaps because a signal handler raised.
        """
        was_done, self._was_done = self._was_done, True
        return not was_done and self._facts is not None and self._facts.mode is CallMode.SYNC

    def wait_begins(self) -> None:
        """Record that the calling thread waits for its call. A thread in `rpc_sync` always does."""
        is_implied = self._facts is None or self._facts.mode is CallMode.SYNC
        if not is_implied and self._tape is not None and self._thread == threading.get_native_id():
            self._tape.mark(self._number, Word.WAIT_ENTERED, _now() - self.entered_ns, How.CALL)

    def returned(self) -> None:
        """Record that the function has returned, although its result is not available yet."""
        if self._tape is not None:
            self._tape.mark(self._number, Word.RETURNED, _now() - self.entered_ns, How.CALL)

    def complete(self, how: How, failure: int = 0) -> None:
        """Record the end, if it is not recorded."""
        if self._is_over or self._tape is None or not self._number:
            return
        self._tape.complete(self._number, self.entered_ns, _now(), how, failure)
        self._is_over = True  # last: a signal handler may raise in between
        self.future = None

    def fail(self, error: BaseException) -> None:
        """Record that the call ended with an exception."""
        try:
            if self._tape is not None and not self._is_over:
                failure = 0
                try:
                    failure = self._tape.names.intern(type(error).__qualname__)
                finally:
                    self.complete(How.FAILED, failure)
        except Exception as our_error:
            guard.report("the end of a remote call", our_error)

    def continue_on(self, recorder: Recorder) -> None:
        """Continue the record of an open call on another tape, because its tape ends.

        The other side identifies the call by its first record.
        """
        facts, tape = self._facts, self._tape
        if facts is None or tape is None or self._is_over:
            return
        tape.complete(self._number, self.entered_ns, _now(), How.UNTRACKED)
        facts = facts._replace(call_site=0)
        self._tape, self._facts = recorder.tape, facts
        self._number = recorder.tape.begin_prepared(
            self.entered_ns, recorder.step, 0, facts.prepare(recorder, self._thread)
        )
