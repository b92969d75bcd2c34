"""Activities of a rank's threads without recorded operations: remote calls, waits in C++, shared groups."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.resolved import ResolvedNames
from otel_torchdist.model.activity_kinds import CALL_SIDES
from otel_torchdist.model.calls import Channel, OperationView
from otel_torchdist.model.kinds import ActivityKind, Flag, RecordKind
from otel_torchdist.model.operations import BLOCKING, RAISED, Operation
from otel_torchdist.model.rank_state.occupations import Occupation, OccupationKind, SharedGroup
from otel_torchdist.model.remote_calls import CallView, Side, WorkerView
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus

# --- code without records ---------------------------------------------------------------------------------------------
# Activities in which a thread may wait for an operation in C++ or through a device. Such waits leave no record.


def occupations_of(tape: TapeReader, status: TapeStatus) -> tuple[Occupation, ...]:
    """Return the current activities of a rank's threads.

    Args:
        tape: The rank's tape.
        status: The tape's status.
    """
    occupations = [
        Occupation(OccupationKind.OPTIMIZER_STEP, activity.thread, activity.entered_ns)
        for activity in tape.open_activities()
        if activity.kind is ActivityKind.OPTIMIZER_STEP
    ]
    if status.backward_since_ns:
        occupations.append(Occupation(OccupationKind.BACKWARD, status.backward_thread, status.backward_since_ns))
    if status.future_since_ns:
        occupations.append(Occupation(OccupationKind.FUTURE, status.future_thread, status.future_since_ns))
    return tuple(occupations)


# --- shared groups ----------------------------------------------------------------------------------------------------
# Groups used by two threads of a rank. Backends pair the calls of a group in the order in which each rank makes them,
# without comparing them. With two threads, this order is random: a call of one thread on rank 0 may be paired with a
# call of the other thread on rank 1. Their sums are then mixed, or both wait forever.
# Two observations prove it: both threads of a rank are blocked in calls at the same time, or threads running different
# functions made the same call on two ranks. Operations in flight prove nothing: they were called one after the other,
# like DDP's.


MAX_GROUPS: Final = 64
MIN_OCCURRENCES: Final = 2
"""Minimum number of overlaps for a finding. A single overlap may be a thread that ends while another joins it."""
_GLOO: Final = "gloo"
_NO_BLOCKING_COLLECTIVE: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED | Flag.ON_DEVICE)
_BLOCKED: Final = (*BLOCKING, *RAISED)
_OF_BACKENDS: Final = re.compile("[,:]")


class SharedGroups:
    """Detects shared groups from the calls of one rank.

    Attributes:
        shown: The shared groups detected so far.
    """

    def __init__(self, resolved: ResolvedNames) -> None:
        """Resolve names with `resolved`."""
        self._resolved = resolved
        self._last: dict[int, Operation] = {}
        self._by_group: dict[int, SharedGroup] = {}
        self.shown: tuple[SharedGroup, ...] = ()

    def ended(self, operation: Operation) -> None:
        """Process an ended operation. This runs for each operation, so the most frequent case comes first."""
        before = self._last.get(operation.group)
        if before is None or before.thread == operation.thread:
            if int(operation.flags) & _NO_BLOCKING_COLLECTIVE == 0 and operation.kind is RecordKind.OPERATION:
                self._last[operation.group] = operation
            return
        if int(operation.flags) & _NO_BLOCKING_COLLECTIVE or operation.kind is not RecordKind.OPERATION:
            return
        self._last[operation.group] = operation
        if _overlap(before, operation):
            self._count(before, operation)

    def _count(self, before: Operation, operation: Operation) -> None:
        known = self._by_group.get(operation.group)
        if known is None and len(self._by_group) >= MAX_GROUPS:
            return
        if known is not None and known.times >= MIN_OCCURRENCES:
            return
        shared = shared_by(self._resolved.operation(before), self._resolved.operation(operation))
        if shared is not None:
            self._by_group[operation.group] = shared if known is None else replace(shared, times=known.times + 1)
            self.shown = tuple(self._by_group.values())


def shared_by(first: OperationView, second: OperationView) -> SharedGroup | None:
    """Return the group shared by two calls; None if its backend orders calls, or if it has one member."""
    group = first.group
    if group is None or len(group.members) < 2 or _GLOO not in _OF_BACKENDS.split(group.name.backend):
        return None
    return SharedGroup(
        group.key,
        (first.name, second.name),
        (first.call_site, second.call_site),
        second.record.step,
        (first.caller, second.caller),
    )


def blocked_pairs(waiting: Collection[OperationView]) -> Iterator[tuple[OperationView, OperationView]]:
    """Yield pairs of collectives of one group in which two threads of a rank currently wait."""
    first: dict[str, OperationView] = {}
    for operation in waiting:
        channel, record = operation.operation_id.channel, operation.record
        if channel.is_point_to_point or channel.kind is not RecordKind.OPERATION or int(record.flags) & Flag.ON_DEVICE:
            continue
        other = first.setdefault(channel.group, operation)
        if 0 != other.record.thread != record.thread != 0:
            yield other, operation


def _overlap(first: Operation, second: Operation) -> bool:
    """Return whether two blocking calls overlapped. The ends of other calls are less exact."""
    if first.completed_ns is None or second.completed_ns is None:
        return False
    if first.how not in _BLOCKED or second.how not in _BLOCKED:
        return False
    return max(first.entered_ns, second.entered_ns) < min(first.completed_ns, second.completed_ns)


# --- open remote calls ------------------------------------------------------------------------------------------------
# The remote procedure calls that a rank has open. An open call is no evidence: a call that runs a trainer lasts as long
# as the training. So these calls are no operations, verdicts do not count them as waits, and only evidence that they
# cannot proceed is a finding.


MAX_CALLS: Final = 512
"""Maximum number of calls in a `WorkerView`, for made and for served calls each; the oldest are kept."""
UNKNOWN_FUNCTION: Final = "a function"


def worker_of(tape: TapeReader, status: TapeStatus) -> WorkerView | None:
    """Return a rank as an RPC worker at the last poll of its tape; None if it is no worker."""
    if not status.rpc_worker:
        return None
    names = tape.names
    made: list[CallView] = []
    served: list[CallView] = []
    joins: int | None = None
    leaves: int | None = None
    for activity in tape.open_activities():
        call, side = activity.call, CALL_SIDES.get(activity.kind)
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


# --- waits in remote calls --------------------------------------------------------------------------------------------
# The remote procedure call in which a missing rank waits: an edge from its thread to the thread that runs the function.
# An open call proves nothing by itself. But if other ranks wait for a rank in an operation, and its thread that should
# enter the operation waits in a call instead, they wait for the called worker.


MAX_DEPTH: Final = 16
"""Maximum depth of nested calls that are followed."""


class CallStage(enum.Enum):
    """The state of a call at the called worker."""

    RUNS = "runs"
    """A thread runs the function and is in no recorded wait."""
    WAITS = "waits"
    """The function waits in an operation."""
    STOPPED = "stopped"
    """The worker is stopped by the kernel."""
    DEFERRED = "deferred"
    """The function has returned a future, and holds no thread any more."""
    NOT_BEGUN = "not begun"
    """No Python function runs for it: the request has not arrived, no thread is free, or the function is a builtin."""
    UNSEEN = "unseen"
    """The worker is not recorded, or is in another run."""


@dataclass(frozen=True, slots=True)
class RemoteWait:
    """The call in which a rank waits; for nested calls, the innermost.

    Attributes:
        call: The call on the caller's side.
        rank: The rank of the called worker; None if it is not seen.
        served: State of the call at the worker.
        since_ns: Monotonic time at which the function started or the worker was stopped; otherwise, of the call.
        operation: The operation in which the function waits; None if it does not wait.
        is_own_thread: Whether the waiting thread itself should enter the missing operation. It was the last thread to
            enter operations of the channel, and no RPC function running on the rank can enter it instead.
    """

    call: CallView
    rank: int | None
    served: CallStage
    since_ns: int
    operation: OperationView | None = None
    is_own_thread: bool = False

    @property
    def text(self) -> str:
        """The called function and its worker: `train on worker1 (rank 1)`."""
        known = f" (rank {self.rank})" if self.rank is not None else ""
        return f"{self.call.function} on {self.call.peer or 'another worker'}{known}"


def remote_wait(world: WorldSnapshot, rank: int, channel: Channel) -> RemoteWait | None:
    """Return the call in which the thread that should enter a channel waits; None if it waits in none."""
    view = world.ranks[rank]
    if view.worker is None or not view.alive:
        return None
    made = [call for call in view.worker.made if call.holds_thread and view.uses(call.thread, channel)]
    if not made:
        return None
    progress = view.progress.get(channel)
    was_last = progress is not None and progress.threads[-1:] == (made[-1].thread,)
    is_own = was_last and not _runs_function_that_may_enter(view)
    return _follow(world, view, made[-1], is_own, 0)


def _runs_function_that_may_enter(view: RankView) -> bool:
    """Return whether the rank runs an RPC function that is not waiting. That function may enter the channel."""
    if view.worker is None:
        return False
    waiting = {call.thread for call in view.worker.made if call.holds_thread}
    waiting |= {operation.record.thread for operation in view.open if operation.record.is_blocking}
    return any(call.thread not in waiting for call in view.worker.served if call.holds_thread)


def _follow(world: WorldSnapshot, caller: RankView, call: CallView, is_own: bool, depth: int) -> RemoteWait:
    callee = next((view for view in world.in_order if _is_worker(view, call.peer)), None)
    if callee is None or callee.worker is None:
        return RemoteWait(call, None, CallStage.UNSEEN, call.since_ns, is_own_thread=is_own)
    rank = callee.rank
    if callee.stopped is not None:
        return RemoteWait(call, rank, CallStage.STOPPED, callee.stopped.since_ns, is_own_thread=is_own)
    served = _served_by(callee, caller, call)
    if served is None:
        return RemoteWait(call, rank, CallStage.NOT_BEGUN, call.since_ns, is_own_thread=is_own)
    if not served.holds_thread:
        return RemoteWait(call, rank, CallStage.DEFERRED, served.since_ns, is_own_thread=is_own)
    inner = [made for made in callee.worker.made if made.holds_thread and made.thread == served.thread]
    if inner and depth < MAX_DEPTH:
        return _follow(world, callee, inner[-1], is_own, depth + 1)
    records = ((operation, operation.record) for operation in callee.open)
    waits = [operation for operation, record in records if record.thread == served.thread and record.is_blocking]
    if waits:
        return RemoteWait(call, rank, CallStage.WAITS, served.since_ns, waits[-1], is_own)
    return RemoteWait(call, rank, CallStage.RUNS, served.since_ns, is_own_thread=is_own)


def _is_worker(view: RankView, name: str) -> bool:
    return view.worker is not None and view.worker.name == name and view.alive


def _served_by(callee: RankView, caller: RankView, call: CallView) -> CallView | None:
    """Return the same call as recorded by the called worker.

    The request names the caller's record. If the caller's tape has changed meanwhile, the only call of that function
    from that worker counts.
    """
    served = callee.worker.served if callee.worker is not None else ()
    own_name = caller.worker.name if caller.worker is not None else ""
    alike = [candidate for candidate in served if (candidate.function, candidate.peer) == (call.function, own_name)]
    exact = next((candidate for candidate in served if call.number and candidate.origin == call.origin), None)
    return exact or (alike[0] if len(alike) == 1 else None)
