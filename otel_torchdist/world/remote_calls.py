"""Remote procedure calls that a rank has open.

That a call is open is no evidence of anything: one that has a trainer run lasts as long as the training. So these are
no operations, no rank waits in them as far as verdicts go, and only what shows that they cannot go on is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.model.kinds import ActivityKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.remote_calls import SIDES, Side
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus

MAX_CALLS: Final = 512
"""Calls shown of each side, the oldest ones."""
UNKNOWN_FUNCTION: Final = "a function"


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
            joins_since_ns=_later(self.joins_since_ns, offset_ns),
            leaves_since_ns=_later(self.leaves_since_ns, offset_ns),
        )


def worker_of(tape: TapeReader, status: TapeStatus) -> WorkerView | None:
    """What a tape shows of its rank as a worker, at its last poll; None if it is none."""
    if not status.rpc_worker:
        return None
    names = tape.names
    made: list[CallView] = []
    served: list[CallView] = []
    joins: int | None = None
    leaves: int | None = None
    for activity in tape.open_activities():
        call, side = activity.call, SIDES.get(activity.kind)
        if activity.kind is ActivityKind.RPC_JOIN:
            joins = activity.entered_ns
        if activity.kind is ActivityKind.RPC_SHUTDOWN:
            leaves = activity.entered_ns
        if call is None or side is None:
            continue
        is_served = side is Side.CALLEE
        holds = call.returned_ns is None if is_served else call.is_waited_for
        function, peer = names.text(activity.detail) or UNKNOWN_FUNCTION, names.text(call.worker_name) or ""
        site = names.call_site(call.call_site)
        origin = (call.caller_nonce, call.caller_number) if is_served else (tape.identity.nonce, activity.number)
        view = CallView(is_served, function, peer, activity.entered_ns, activity.thread, holds, site, *origin)
        (served if is_served else made).append(view)
    calls = (*made[:MAX_CALLS], *served[:MAX_CALLS])
    return WorkerView(names.text(status.rpc_worker) or "", status.rpc_threads, calls, joins, leaves)


def _later(time_ns: int | None, by_ns: int) -> int | None:
    return None if time_ns is None else time_ns + by_ns
