"""Both sides of remote procedure calls."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from otel_torchdist.model.kinds import CallMode
from otel_torchdist.model.names import CallSiteName

NO_WORKER: Final = -1


class Side(enum.Enum):
    """One side of a remote procedure call."""

    CALLER = enum.auto()
    CALLEE = enum.auto()


class RemoteCall(msgspec.Struct, frozen=True, gc=False):
    """One side of a remote procedure call.

    Attributes:
        worker: Id of the other worker; `NO_WORKER` if unknown, such as when the caller is not recorded.
        worker_name: Name id of the other worker's name.
        call_site: Name id of the call site; only on the caller's side.
        mode: The API that made the call; only on the caller's side.
        caller_nonce: On the callee's side: nonce of the caller's tape, if the caller is recorded; else 0.
        caller_number: On the callee's side: number of the caller's record. On the caller's side: number, on this tape,
            of the served call whose function makes this call; 0 if none does.
        caller_step: The step of the outermost caller. Both sides belong to the trace of that step.
        returned_ns: When the function returned and freed its thread before the result was available: torch's
            `async_execution`.
        is_waited_for: Whether the calling thread waits for the result.
    """

    worker: int = NO_WORKER
    worker_name: int = 0
    call_site: int = 0
    mode: CallMode = CallMode.UNKNOWN
    caller_nonce: int = 0
    caller_number: int = 0
    caller_step: int = 0
    returned_ns: int | None = None
    is_waited_for: bool = False


@dataclass(frozen=True, slots=True)
class CallView:
    """One side of a remote procedure call in flight.

    Attributes:
        is_served: Whether this rank runs the function; else it made the call.
        peer: Name of the worker on the other side; '' if unknown.
        since_ns: When the call began.
        thread: Native id of the thread.
        holds_thread: Whether the call occupies the thread, which runs the function or waits for the result.
        call_site: The line that made the call.
        nonce: Nonce of the caller's tape; 0 if the caller is not recorded.
        number: Number of the caller's record on that tape, the same on both sides.
    """

    is_served: bool
    function: str
    peer: str
    since_ns: int
    thread: int
    holds_thread: bool
    call_site: CallSiteName | None = None
    nonce: int = 0
    number: int = 0

    @property
    def origin(self) -> tuple[int, int]:
        """The identity of the call, the same on both sides."""
        return self.nonce, self.number

    @property
    def text(self) -> str:
        """The call in words: `train → worker1` for a call to a worker, `train ← worker0` for a call from a worker."""
        return f"{self.function} {'←' if self.is_served else '→'} {self.peer or 'another worker'}"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A rank as a worker of RPC.

    Attributes:
        threads: Number of threads that serve calls; 0 if unknown.
        calls: Calls in flight: first the calls that this worker made, then the calls that it serves, each oldest first.
        joins_since_ns: When the worker began to wait for the others in `init_rpc`; None if it does not wait there.
        leaves_since_ns: When the worker began to wait for the others in `rpc.shutdown`; None if it does not wait there.
    """

    name: str
    threads: int
    calls: tuple[CallView, ...] = ()
    joins_since_ns: int | None = None
    leaves_since_ns: int | None = None

    @property
    def made(self) -> tuple[CallView, ...]:
        """Calls in flight that this worker made."""
        return tuple(call for call in self.calls if not call.is_served)

    @property
    def served(self) -> tuple[CallView, ...]:
        """Calls in flight that this worker serves."""
        return tuple(call for call in self.calls if call.is_served)

    def moved(self, offset_ns: int) -> WorkerView:
        """Return a copy on a clock that is ahead by `offset_ns`."""
        return replace(
            self,
            calls=tuple(replace(call, since_ns=call.since_ns + offset_ns) for call in self.calls),
            joins_since_ns=shifted(self.joins_since_ns, offset_ns),
            leaves_since_ns=shifted(self.leaves_since_ns, offset_ns),
        )


def shifted(time_ns: int | None, by_ns: int) -> int | None:
    """Add an offset to a time; None stays None."""
    return None if time_ns is None else time_ns + by_ns
