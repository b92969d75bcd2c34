"""Which of the ranks that died may have been gone before all others.

Two things order deaths. The kernel shows the ends of one node's processes in the order in which they came, however late
that is read; a launcher reacts only to an end that the kernel has shown. And a rank that still shows a sign of life was
not dead before. The times of deaths do not: on a loaded node they are late, by any amount.

The kernel closes the connections of a process before it shows its end, with a device's driver seconds before. So a rank
may have been gone, at the earliest, when an operation that needs it failed on another one.
"""

from __future__ import annotations

import enum
import math
import re
import signal
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from otel_torchdist.judge.verdict.giving_up import timed_out, timeout_passed, went_on_after
from otel_torchdist.model.calls import OperationId, OperationView
from otel_torchdist.model.kinds import Flag, How, TapeState
from otel_torchdist.model.snapshot import RankView

OTHER_NODE_NS: Final = 5_000_000
"""How precisely the clocks of two nodes are compared at best."""
LIVED_ON_NS: Final = 5_000_000_000
"""Whatever ends all ranks does so within this time, on any node: less than any launcher waits before it sends SIGKILL
to the rest, except for mpirun (1 s)."""


@dataclass(frozen=True)
class Ends:
    """The ends of a run's ranks, as far as they are seen.

    Attributes:
        views: All ranks that share an operation.
    """

    views: Sequence[RankView]

    @cached_property
    def dead(self) -> list[RankView]:
        """Those that are dead, in the order in which their ends were seen."""
        return sorted((view for view in self.views if view.is_dead), key=died_ns)

    @cached_property
    def ways(self) -> dict[int, Way]:
        """By rank, how it ended."""
        return {view.rank: way_of(view) for view in self.dead}

    @cached_property
    def living(self) -> list[RankView]:
        """Those that are alive."""
        return [view for view in self.views if view.alive and view.death is None]

    @cached_property
    def statuses(self) -> set[int]:
        """The wait statuses that are known."""
        found = {view.death.status for view in self.dead if view.death is not None}
        return {status for status in found if status is not None}

    @cached_property
    def has_own_end(self) -> bool:
        """Whether one came to its own end after an operation had failed."""
        return any(map(has_left_by_itself, self.dead))

    @cached_property
    def has_lost_one(self) -> bool:
        """Whether a rank has left without an error, which may have ended others that needed it."""
        return len(self.living) + len(self.dead) < len(self.views)

    @cached_property
    def heads(self) -> list[RankView]:
        """The dead that may have been gone first: no other one is known to have ended before them.

        Ranks that were interrupted are left out, unless there are no others.
        """
        own = [view for view in self.dead if self.ways[view.rank] is not Way.INTERRUPTED]
        if not own:
            return self.dead[:1]
        ended: dict[tuple[str, bool], int] = {}
        for view in own:
            if is_exact(view):
                ended.setdefault(_node(view), died_ns(view))
        blur_ns = max(map(_blur_ns, own))
        surely_ns = died_ns(own[0]) + blur_ns
        heads = [
            view
            for view in own
            if last_sign_ns(view) <= surely_ns and (not is_exact(view) or self.gone_ns(view) <= ended[_node(view)])
        ]
        # What was interrupted first had lost a rank that was gone by then.
        return [view for view in heads if last_sign_ns(view) <= self._interrupted_ns] or heads

    @cached_property
    def _interrupted_ns(self) -> float:
        """When the first operation failed; infinity if none did."""
        interrupted = [view for view in self.dead if self.ways[view.rank] is not Way.GAVE_UP]
        failed = [one for view in interrupted if (one := interrupted_operation(view)) is not None]
        return min((one.record.completed_ns or 0 for one in failed), default=math.inf)

    def gone_ns(self, view: RankView) -> int:
        """The earliest moment at which a rank that died may have been gone."""
        sign_ns, ended_ns = last_sign_ns(view), died_ns(view)
        if _was_unwatched(view):
            return sign_ns
        if may_have_been_asked(view) and self.ways[view.rank] is not Way.CRASHED:
            return ended_ns  # it may have lived on without a sign, hung or stopped, until SIGKILL followed SIGTERM
        own = interrupted_operation(view)
        for operation_id, failed in self._failures.items():
            is_other = own is None or own.operation_id != operation_id
            if is_other and failed[0][1].involves(view.rank):
                after = bisect_left(failed, sign_ns, key=lambda one: one[0])
                ended_ns = min([ended_ns, *(time_ns for time_ns, _ in failed[after : after + 1])])
        return ended_ns

    @cached_property
    def _failures(self) -> dict[OperationId, list[tuple[int, OperationView]]]:
        """The operations in which ranks failed, or were aborted because a peer was gone, with the times of that."""
        found: defaultdict[OperationId, list[tuple[int, OperationView]]] = defaultdict(list)
        for view in self.dead:
            one = interrupted_operation(view)
            if one is not None:
                found[one.operation_id].append((one.record.completed_ns or 0, one))
            if self.ways[view.rank] is Way.ABORTED:
                for operation in view.open:
                    found[operation.operation_id].append((died_ns(view), operation))
        return {operation_id: sorted(failed, key=lambda one: one[0]) for operation_id, failed in found.items()}

    def is_first_of_all(self, view: RankView) -> bool:
        """Whether all other ends are known to have come after that of a rank."""
        return all(other is view or self._is_after(other, view) for other in self.dead)

    def is_first_to_fall_silent(self, view: RankView) -> bool:
        """Whether all others that did not end because of others showed a sign of life after the end of a rank."""
        others = [one for one in self.dead if one is not view and not self.ways[one.rank].proves.follows_soon]
        return all(last_sign_ns(other) > died_ns(view) for other in others) and not self.is_another_dying(view)

    def is_another_dying(self, view: RankView) -> bool:
        """Whether one that still counts as alive has not shown that since the end of a rank."""
        return any(last_sign_ns(other) < died_ns(view) for other in self.living)

    def has_interrupted_all(self, view: RankView) -> bool:
        """Whether all others were interrupted in operations after the last sign of life of a rank, or lived on then."""
        others = [other for other in self.dead if other is not view]
        if self._interrupted_ns == math.inf or self.is_another_dying(view):
            return False
        return all(self._was_interrupted_after(other, last_sign_ns(view)) for other in others)

    def _was_interrupted_after(self, view: RankView, moment_ns: int) -> bool:
        if self.ways[view.rank] is not Way.INTERRUPTED:
            return last_sign_ns(view) > self._interrupted_ns >= moment_ns
        failed = interrupted_operation(view)
        return failed is not None and (failed.record.completed_ns or 0) >= moment_ns

    def _is_after(self, other: RankView, first: RankView) -> bool:
        if is_exact(other) and is_exact(first) and _node(other) == _node(first):
            return died_ns(other) > died_ns(first)
        return last_sign_ns(other) > died_ns(first) + max(_blur_ns(other), _blur_ns(first))

    def has_been_outlived(self, view: RankView) -> bool:
        """Whether all other ranks have lived on for longer than anything takes that ends all of them."""
        others = [other for other in (*self.dead, *self.living) if other is not view]
        return bool(others) and min(map(last_sign_ns, others)) > died_ns(view) + LIVED_ON_NS


def last_sign_ns(view: RankView) -> int:
    """When a rank last showed that it was alive."""
    ended_ns = view.last.record.completed_ns if view.last is not None else None
    sign_ns = max(view.heartbeat_ns, ended_ns or 0)
    return sign_ns if view.alive else min(sign_ns, died_ns(view))


def is_exact(view: RankView) -> bool:
    """Whether the kernel gives the order of its end among others of its node."""
    return view.death is not None and view.death.is_exact


def _node(view: RankView) -> tuple[str, bool]:
    return view.host, view.is_remote


def _was_unwatched(view: RankView) -> bool:
    """Whether a rank was gone before anything watched it: it may have died at any time since its last sign of life."""
    return view.death is None and not view.seen_alive_ns


def _blur_ns(view: RankView) -> int:
    """How inaccurate the time of a death may be when it is compared with others."""
    seen_ns = view.death.resolution_ns if view.death is not None else 0
    return max(seen_ns, OTHER_NODE_NS, view.clock_error_ns) if view.is_remote else seen_ns


# --- ways of ending ---------------------------------------------------------------------------------------------------
# How a rank ended, as its wait status and its tape show it: what each way proves about who was first.


ASKING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""What launchers, schedulers, terminals and people send first."""
_HASTY: Final = frozenset({"raylet", "orted", "prted", "mpirun", "mpiexec", "orterun", "prterun"})
"""Launchers that send SIGKILL at once (Ray), or a second after SIGTERM (Open MPI); the others wait for 30 s."""
_HANDLED: Final = 128
"""Programs that handle a signal exit with its number added to this."""
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_ASKED_BY_EXCEPTION: Final = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|SignalException|SystemExit")


class Way(enum.Enum):
    """How a rank ended."""

    RAISED = "raised"
    """By an exception of its own. Nothing that happens to another rank does that."""
    CRASHED = "crashed"
    """By a signal that only its own process raises. Nothing that happens to another rank does that."""
    EXITED = "exited"
    """By exit amid its work. A handler of SIGTERM may do that too."""
    KILLED = "killed"
    """By SIGKILL: of the kernel, of a person; or of a launcher that ends the rest, at once or after SIGTERM."""
    ABORTED = "aborted"
    """By SIGABRT in an operation on a device. NCCL's watchdog does that also if a peer is gone."""
    LOST = "lost"
    """Nothing shows how."""
    SWEPT = "swept"
    """By SIGKILL, which its launcher sends where others send SIGTERM: as `KILLED`, or as `ASKED`."""
    ASKED = "asked"
    """On request, which says nothing about this rank."""
    INTERRUPTED = "interrupted"
    """After its last operation had failed, as operations do whose peers are gone."""
    GAVE_UP = "gave up"
    """After its backend had waited until its timeout: others are the cause, whether they have ended or not."""

    @property
    def proves(self) -> WayTraits:
        """What follows from the way alone."""
        return _TRAITS[self]


@dataclass(frozen=True, slots=True)
class WayTraits:
    """What follows from the way in which a rank ended alone.

    Attributes:
        is_consequence: Whether a rank ends so only because of others.
        is_request: Whether a launcher that ends the rest ends a rank so.
        is_sudden: Whether a rank ends so amid its work.
        follows_soon: Whether it comes soon after the end of another rank, so that a lack of later signs of life is
            no evidence that the rank was gone before.
        comes_after_shown_end: Whether a launcher ends a rank so only after the kernel has shown another end. A backend
            may abort a rank before that.
    """

    is_consequence: bool = False
    is_request: bool = False
    is_sudden: bool = False
    follows_soon: bool = False
    comes_after_shown_end: bool = False


def _traits(way: Way) -> WayTraits:
    match way:
        case Way.INTERRUPTED:
            return WayTraits(is_consequence=True, follows_soon=True)
        case Way.GAVE_UP:
            return WayTraits(is_consequence=True)
        case Way.ASKED:
            return WayTraits(is_request=True, follows_soon=True)
        case Way.SWEPT:
            return WayTraits(is_request=True)
        case Way.EXITED | Way.KILLED:
            return WayTraits(is_sudden=True, comes_after_shown_end=True)
        case Way.CRASHED:
            return WayTraits(is_sudden=True)
        case Way.RAISED | Way.ABORTED | Way.LOST:
            return WayTraits()


_TRAITS: Final = {way: _traits(way) for way in Way}


def way_of(view: RankView) -> Way:
    """How a rank that is dead ended."""
    if has_raised(view):
        return Way.RAISED
    if _was_asked(view):
        return Way.ASKED
    failed = interrupted_operation(view)
    if failed is not None:
        return Way.GAVE_UP if timed_out(view) is not None else Way.INTERRUPTED
    number = view.death.signal if view.death is not None else 0
    is_lost = view.death is None or view.death.status is None
    if (is_lost or number == signal.SIGABRT) and any(timeout_passed(one, died_ns(view)) for one in view.open):
        return Way.GAVE_UP
    if is_lost:
        return Way.LOST
    if number == signal.SIGKILL:
        return Way.SWEPT if _is_launcher_hasty(view) and may_have_been_asked(view) else Way.KILLED
    if number == signal.SIGABRT and any(int(one.record.flags) & _ON_DEVICE for one in view.open):
        return Way.ABORTED
    return Way.CRASHED if number else Way.EXITED


def _is_launcher_hasty(view: RankView) -> bool:
    return view.death is not None and view.death.launcher in _HASTY


def has_raised(view: RankView) -> bool:
    """Whether an exception of its own ended a rank, not a failed operation or a request to end."""
    return failed_by_exception(view) and interrupted_operation(view) is None


def failed_by_exception(view: RankView) -> bool:
    """Whether an exception ended a rank, and not one by which a program ends when a signal asks it to."""
    return view.state is TapeState.FAILED and not _ASKED_BY_EXCEPTION.search(view.failure)


def interrupted_operation(view: RankView) -> OperationView | None:
    """The last operation of a rank, if it failed and that ended the rank; None if not."""
    last = view.last
    if last is None or last.record.how is not How.FAILED or went_on_after(view, last):
        return None
    return last


def has_left_by_itself(view: RankView) -> bool:
    """Whether a rank came to its own end after an operation had failed: nothing had asked it to end before."""
    if way_of(view) is not Way.INTERRUPTED:
        return False
    return view.state is TapeState.FAILED or (view.exit_code is not None and not may_have_been_asked(view))


def may_have_been_asked(view: RankView) -> bool:
    """Whether a rank that exited or was killed may have got SIGTERM before, and outlived it."""
    death = view.death
    return death is not None and (death.outlives_request or bool(death.stopped))


def died_ns(view: RankView) -> int:
    """When the end of a rank was seen."""
    return view.death.at_ns if view.death is not None else view.gone_since_ns or 0


def _was_asked(view: RankView) -> bool:
    """Whether a rank is known to have been asked to end, as launchers and schedulers do."""
    death = view.death
    if view.asked_signal or _ASKED_BY_EXCEPTION.search(view.failure):
        return True
    if death is None:
        return False
    return death.signal in ASKING or (death.exit_code or 0) - _HANDLED in ASKING
