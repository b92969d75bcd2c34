"""Remote procedure calls: what is known of each of their two sides."""

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
        worker: Id of the other worker; `NO_WORKER` if it is not known, as when the caller is not recorded.
        worker_name: Name id of its name.
        call_site: Name id of the line that made the call; only on the caller's side.
        mode: How it was made; only on the caller's side.
        caller_nonce: Nonce of the caller's tape, if this is the other side and the caller is recorded; else 0.
        caller_number: Number of the caller's record. On the caller's side, if the thread that calls runs a function for
            another worker meanwhile: number of the record of that, on this tape.
        caller_step: The step, of the first caller, in whose trace both sides are.
        returned_ns: When the function returned, and its thread was free again, though its result was still to come:
            torch calls that `async_execution`.
        is_waited_for: Whether the thread that has made the call waits for it.
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
    """One side of an open call.

    Attributes:
        is_served: Whether this rank runs the function; else it has made the call.
        function: Name of the function.
        peer: Name of the worker on the other side; '' if it is not known.
        since_ns: Since when.
        thread: Native id of the thread.
        holds_thread: Whether the thread can do nothing else: it runs the function, or waits for the result.
        call_site: The line that made the call.
        nonce: Nonce of the tape of its caller; 0 if that is not recorded.
        number: Number of the caller's record there, the same on both sides.
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
        """Identifies the call on both sides."""
        return self.nonce, self.number

    @property
    def text(self) -> str:
        """What the rank does: `train → worker1` calls it there, `train ← worker0` runs it for that worker."""
        return f"{self.function} {'←' if self.is_served else '→'} {self.peer or 'another worker'}"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A rank as a worker of RPC.

    Attributes:
        name: Its name.
        threads: How many threads serve the calls of others; 0 if that is not known.
        calls: Its open calls: first those that it has made, then those that it serves, the oldest first.
        joins_since_ns: Since when it waits in `init_rpc` for the others; None if it does not.
        leaves_since_ns: Since when it waits in `rpc.shutdown` for the others; None if it does not.
    """

    name: str
    threads: int
    calls: tuple[CallView, ...] = ()
    joins_since_ns: int | None = None
    leaves_since_ns: int | None = None

    @property
    def made(self) -> tuple[CallView, ...]:
        """The calls that it has made."""
        return tuple(call for call in self.calls if not call.is_served)

    @property
    def served(self) -> tuple[CallView, ...]:
        """The calls that it serves."""
        return tuple(call for call in self.calls if call.is_served)

    def moved(self, offset_ns: int) -> WorkerView:
        """The same on another node's clock, which is ahead by so much."""
        return replace(
            self,
            calls=tuple(replace(call, since_ns=call.since_ns + offset_ns) for call in self.calls),
            joins_since_ns=later(self.joins_since_ns, offset_ns),
            leaves_since_ns=later(self.leaves_since_ns, offset_ns),
        )


def later(time_ns: int | None, by_ns: int) -> int | None:
    """Return a time moved by an offset; None stays None."""
    return None if time_ns is None else time_ns + by_ns
