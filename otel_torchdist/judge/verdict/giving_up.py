"""Ranks that gave up: a timeout of the backend or the program ended their wait, and then their process.

The end of such a rank is a consequence of the wait, and so are the ends that its launcher then causes. So the judge
looks at the run just before the first rank gave up, which shows the ranks that were absent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from otel_torchdist.model.calls import Channel, OperationView, Progress
from otel_torchdist.model.kinds import Blame, How, RecordKind, TapeState
from otel_torchdist.model.names import AtTimeout, GroupName
from otel_torchdist.model.rank_state.lives import Stopped
from otel_torchdist.model.snapshot import RankView, WorldSnapshot

SETTLING_NS: Final = 500_000_000
"""Time in ns before the first give-up in which other ranks may have failed for the same reason. Their waits began at
different moments."""

EXIT_TAKES_NS: Final = 30_000_000_000
"""Time in ns after a timeout's exception. A later exception shows that the process had continued; an earlier one may be
part of a slow exit."""
RAISED_BY_WAITS: Final = ("RuntimeError", "DistBackendError", "DistError")


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A wait that a rank gave up.

    Attributes:
        at_ns: Monotonic time at which it gave up.
        backend: What gave up: `gloo`, `NCCL`, the name of a group's creation, or `its program`, which set a timeout for
            this wait alone.
    """

    rank: int
    operation: OperationView
    at_ns: int
    backend: str

    @property
    def after_ns(self) -> int:
        """Duration of the wait."""
        return max(self.at_ns - self.operation.record.entered_ns, 0)


def timed_out(view: RankView) -> OperationView | None:
    """Return the last operation of a rank if a timeout ended it; None otherwise."""
    last = view.last
    if last is None or last.record.how is not How.FAILED or last.record.completed_ns is None:
        return None
    is_timeout = last.record.blame is Blame.TIMEOUT or timeout_passed(last, last.record.completed_ns)
    return last if is_timeout else None


def gave_up(view: RankView) -> GivenUp | None:
    """Return the wait that a rank gave up before it ended; None if it gave up none, or continued afterwards."""
    if view.alive and view.state is TapeState.RUNNING:
        return None
    last = timed_out(view)
    if last is not None:
        at_ns = last.record.completed_ns or 0
        return None if went_on_after(view, last) else GivenUp(view.rank, last, at_ns, _backend_of(last))
    if view.failure not in RAISED_BY_WAITS or (view.last is not None and view.last.record.how is How.FAILED):
        return None
    for operation in view.open:
        ended_ns = operation.record.wait_returned_ns
        if ended_ns is not None:
            return GivenUp(view.rank, operation, ended_ns, "its program")
    return None


def went_on_after(view: RankView, failed: OperationView) -> bool:
    """Return whether a rank handled the exception of an operation and ended much later, for another reason."""
    failed_ns = failed.record.completed_ns or 0
    return view.failure not in ("", failed.failure) and view.heartbeat_ns - failed_ns > EXIT_TAKES_NS


def all_given_up(views: Iterable[RankView]) -> list[GivenUp]:
    """Return the waits that ranks gave up, in order of time."""
    given_up = [wait for view in views if (wait := gave_up(view)) is not None]
    return sorted(given_up, key=lambda wait: (wait.at_ns, wait.rank))


def explains_ends(views: Iterable[RankView]) -> bool:
    """Return whether giving up explains all ends: no other rank ended before the first one gave up.

    Other deaths, which no rank waited for until a timeout, must be caused by a launcher or a backend.
    """
    ranks = tuple(views)
    given_up = all_given_up(ranks)
    if not given_up:
        return False
    first_ns, gave_up_ranks = given_up[0].at_ns, {wait.rank for wait in given_up}
    ending = [view for view in ranks if view.is_dead or view.state is TapeState.FAILED]
    return bool(ending) and all(_ended_after(view, first_ns) for view in ending if view.rank not in gave_up_ranks)


def _ended_after(view: RankView, first_ns: int) -> bool:
    if view.state is TapeState.FAILED and not _was_interrupted(view, first_ns):
        return False  # by an exception of its own
    ended_ns = view.death.at_ns if view.death is not None else _last_sign_ns(view)
    return ended_ns >= first_ns - SETTLING_NS


def _was_interrupted(view: RankView, first_ns: int) -> bool:
    record = view.last.record if view.last is not None else None
    return record is not None and record.how is How.FAILED and (record.completed_ns or 0) >= first_ns - SETTLING_NS


def _last_sign_ns(view: RankView) -> int:
    """Return when a rank was last seen. Its heartbeat may be older than a second where its GIL was held."""
    ended_ns = view.last.record.completed_ns or 0 if view.last is not None else 0
    return max(view.heartbeat_ns + HEARTBEAT_NS, view.seen_alive_ns, ended_ns)


HEARTBEAT_NS: Final = 1_500_000_000
"""Period of heartbeats in ns, with a margin. A rank may live up to this long after its last heartbeat."""


def _backend_of(operation: OperationView) -> str:
    if operation.record.kind is RecordKind.RENDEZVOUS:
        return operation.name  # a timeout of the creation itself, or of its store
    return backend_of(operation.group.name) if operation.group is not None else "its backend"


# --- the run as it was -------------------------------------------------------------------------------------------


def before_giving_up(world: WorldSnapshot) -> WorldSnapshot | None:
    """Return the run just before the first rank gave up; None unless giving up explains how ranks have ended."""
    views = tuple(world.ranks.values())
    if not explains_ends(views):
        return None
    at_ns = all_given_up(views)[0].at_ns - 1
    return dataclasses.replace(
        world, taken_ns=at_ns, ranks={rank: rewound(view, at_ns) for rank, view in world.ranks.items()}
    )


def rewound(view: RankView, at_ns: int) -> RankView:
    """Return a rank as it was before it ended or failed in its operation."""
    death = view.death
    if _had_left(view, at_ns - SETTLING_NS):
        return view
    stopped = Stopped(death.stopped, death.stopped_since_ns) if death is not None and death.stopped else view.stopped
    then = dataclasses.replace(
        view,
        alive=True,
        gone_since_ns=None,
        state=TapeState.RUNNING,
        failure="",
        death=None,
        stopped=stopped,
        ran_ns=death.ran_ns if death is not None else view.ran_ns,
        open=tuple(_still_waiting(operation) for operation in view.open if operation.record.entered_ns <= at_ns),
        progress={channel: _reached(view, channel, known, at_ns) for channel, known in view.progress.items()},
    )
    last = view.last
    if last is None or (last.record.completed_ns or 0) < at_ns - SETTLING_NS or last.record.how is not How.FAILED:
        return then
    if last.record.entered_ns > at_ns:
        return dataclasses.replace(then, last=None)
    return back_in(then, last)


def _had_left(view: RankView, at_ns: int) -> bool:
    """Return whether heartbeats and operations show that a rank had already ended without an error."""
    if view.is_dead or view.state is TapeState.FAILED or not view.is_over or view.open:
        return False
    return max(view.heartbeat_ns, view.last.record.completed_ns or 0 if view.last is not None else 0) < at_ns


def back_in(view: RankView, interrupted: OperationView) -> RankView:
    """Return a rank as it was while it was still in an operation."""
    record = msgspec.structs.replace(
        interrupted.record, completed_ns=None, how=None, failure=0, blame=Blame.UNKNOWN, wait_returned_ns=None
    )
    channel, sequence = interrupted.operation_id
    progress = dict(view.progress)
    if channel in progress and progress[channel].failed == sequence:
        progress[channel] = progress[channel]._replace(failed=0, failure="")
    inside = dataclasses.replace(
        interrupted, record=record, failure="", waiting_since_ns=record.waiting_since_ns, tolerance_ns=0
    )
    return dataclasses.replace(view, open=(*view.open, inside), last=None, progress=progress)


def _still_waiting(operation: OperationView) -> OperationView:
    if operation.record.wait_returned_ns is None:
        return operation
    record = msgspec.structs.replace(operation.record, wait_returned_ns=None)
    return dataclasses.replace(operation, record=record, waiting_since_ns=record.waiting_since_ns, tolerance_ns=0)


def _reached(view: RankView, channel: Channel, known: Progress, at_ns: int) -> Progress:
    """Return the progress in a channel without operations entered later, because others were gone."""
    operations = (*view.open, *((view.last,) if view.last is not None else ()))
    later = [
        operation.operation_id.sequence
        for operation in operations
        if operation.operation_id.channel == channel and operation.record.entered_ns > at_ns
    ]
    if not later:
        return known
    entered = min(min(later) - 1, known.entered)
    failed, failure = (known.failed, known.failure) if known.failed <= entered else (0, "")
    recent = tuple(arrival for arrival in known.recent if arrival.sequence <= entered)
    return known._replace(entered=entered, failed=failed, failure=failure, recent=recent)


# --- deadlines of backends --------------------------------------------------------------------------------------------
# The deadline of a wait: the backend ends it after the group's timeout. NCCL's watchdog counts
# from the enqueueing of an operation. gloo counts collectives from the call, wherever they are waited for, and messages
# from the wait. The creation of a group obeys other timeouts, including the store's, so its deadline is unknown.


EARLY_NS: Final = 50_000_000
"""Tolerance in ns: a backend may count from a moment before the call was recorded."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The first time at which a backend ends a wait.

    Attributes:
        rank: The waiting rank whose timeout comes first.
        backend: `gloo` or `NCCL`.
        at_timeout: The backend's reaction; never `UNKNOWN`.
        at_ns: End of the timeout, in monotonic time.
    """

    rank: int
    backend: str
    at_timeout: AtTimeout
    timeout_ns: int
    at_ns: int


def first_deadline(world: WorldSnapshot, waits: Mapping[int, OperationView]) -> Deadline | None:
    """Return the earliest deadline of operations open on live ranks; None if unknown.

    Args:
        world: The snapshot.
        waits: Open operations by rank.
    """
    living = [_deadline(rank, operation) for rank, operation in waits.items() if world.ranks[rank].alive]
    known = [deadline for deadline in living if deadline is not None]
    ending = [deadline for deadline in known if ends_waits(deadline.at_timeout)]
    return min(ending or known, key=lambda deadline: (deadline.at_ns, deadline.rank), default=None)


def _deadline(rank: int, operation: OperationView) -> Deadline | None:
    name, record = known_timeout(operation), operation.record
    if name is None or record.completed_ns is not None:
        return None
    backend, since_ns = backend_of(name), record.entered_ns
    if backend == "gloo" and operation.operation_id.channel.is_point_to_point:
        if operation.waiting_since_ns is None:
            return None
        since_ns = operation.waiting_since_ns
    timeout_ns = name.timeout_ms * 1_000_000
    return Deadline(rank, backend, name.at_timeout, timeout_ns, since_ns + timeout_ns)


def known_timeout(operation: OperationView) -> GroupName | None:
    """Return the name of an operation's group if the timeout is known and applies; None otherwise."""
    group = operation.group
    if group is None or operation.record.kind is not RecordKind.OPERATION:
        return None
    name = group.name
    return name if name.timeout_ms and name.at_timeout is not AtTimeout.UNKNOWN else None


def ends_waits(at_timeout: AtTimeout) -> bool:
    """Return whether a backend is known to end waits at its timeout."""
    match at_timeout:
        case AtTimeout.RAISES | AtTimeout.ENDS | AtTimeout.ABORTS:
            return True
        case AtTimeout.NOTHING | AtTimeout.UNKNOWN:
            return False


def backend_of(name: GroupName) -> str:
    """Return the user-facing name of a backend with a known timeout."""
    return "NCCL" if "nccl" in name.backend.lower() else "gloo"


def timeout_passed(operation: OperationView, ended_ns: int | None) -> bool:
    """Return whether a wait lasted until the backend's timeout; False if the timeout is unknown."""
    name = known_timeout(operation)
    if name is None or ended_ns is None or not ends_waits(name.at_timeout):
        return False
    return ended_ns - operation.record.entered_ns >= name.timeout_ms * 1_000_000 - EARLY_NS
