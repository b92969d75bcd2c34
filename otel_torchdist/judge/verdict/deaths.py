"""The order of deaths: dead ranks that may have died before all others.

Two facts order deaths. The kernel reports the ends of one node's processes in order, however late they are read, and a
launcher reacts only to a reported end. And a rank that shows a sign of life is not dead yet. Timestamps of deaths do
not order them: on a loaded node they are late by any amount.

The kernel closes a process's connections before it reports its end; with a device driver, seconds before. So the
earliest moment at which a rank may have been gone is when an operation that needs it failed on another rank.
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
"""Best accuracy in ns of comparing the clocks of two nodes."""
LIVED_ON_NS: Final = 5_000_000_000
"""Time in ns within which a common cause ends all ranks, on any node. It is shorter than the delay of any launcher
before SIGKILL, except mpirun's (1 s)."""


@dataclass(frozen=True)
class Ends:
    """The observed ends of a run's ranks."""

    views: Sequence[RankView]

    @cached_property
    def dead(self) -> list[RankView]:
        """The dead ranks, in the order in which their ends were seen."""
        return sorted((view for view in self.views if view.is_dead), key=died_ns)

    @cached_property
    def ways(self) -> dict[int, Way]:
        """The way each dead rank ended, by rank."""
        return {view.rank: way_of(view) for view in self.dead}

    @cached_property
    def living(self) -> list[RankView]:
        """The live ranks."""
        return [view for view in self.views if view.alive and view.death is None]

    @cached_property
    def statuses(self) -> set[int]:
        """The known wait statuses."""
        recorded = {view.death.status for view in self.dead if view.death is not None}
        return {status for status in recorded if status is not None}

    @cached_property
    def has_own_end(self) -> bool:
        """Whether a rank ended by itself after an operation had failed."""
        return any(map(has_left_by_itself, self.dead))

    @cached_property
    def has_lost_one(self) -> bool:
        """Whether a rank has left without an error. That may have ended ranks that needed it."""
        return len(self.living) + len(self.dead) < len(self.views)

    @cached_property
    def heads(self) -> list[RankView]:
        """The dead ranks that may have died first: no other rank is known to have ended before them.

        Interrupted ranks are left out, unless all are interrupted.
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
        # The rank that was lost must have been gone when the first operation failed.
        return [view for view in heads if last_sign_ns(view) <= self._interrupted_ns] or heads

    @cached_property
    def _interrupted_ns(self) -> float:
        """When the first operation failed, in monotonic ns; infinity if none failed."""
        interrupted = [view for view in self.dead if self.ways[view.rank] is not Way.GAVE_UP]
        failed = [operation for view in interrupted if (operation := interrupted_operation(view)) is not None]
        return min((operation.record.completed_ns or 0 for operation in failed), default=math.inf)

    def gone_ns(self, view: RankView) -> int:
        """Return the earliest moment at which a dead rank may have been gone."""
        sign_ns, ended_ns = last_sign_ns(view), died_ns(view)
        if _was_unwatched(view):
            return sign_ns
        if may_have_been_asked(view) and self.ways[view.rank] is not Way.CRASHED:
            return ended_ns  # it may have hung, or been stopped, from its last sign until SIGKILL followed SIGTERM
        own = interrupted_operation(view)
        for operation_id, failed in self._failures.items():
            is_other = own is None or own.operation_id != operation_id
            if is_other and failed[0][1].involves(view.rank):
                after = bisect_left(failed, sign_ns, key=lambda one: one[0])
                ended_ns = min([ended_ns, *(time_ns for time_ns, _ in failed[after : after + 1])])
        return ended_ns

    @cached_property
    def _failures(self) -> dict[OperationId, list[tuple[int, OperationView]]]:
        """By operation, the failures in it and the aborts caused by a lost peer, each with its time."""
        failures: defaultdict[OperationId, list[tuple[int, OperationView]]] = defaultdict(list)
        for view in self.dead:
            interrupted = interrupted_operation(view)
            if interrupted is not None:
                failures[interrupted.operation_id].append((interrupted.record.completed_ns or 0, interrupted))
            if self.ways[view.rank] is Way.ABORTED:
                for operation in view.open:
                    failures[operation.operation_id].append((died_ns(view), operation))
        return {
            operation_id: sorted(failed, key=lambda interrupted: interrupted[0])
            for operation_id, failed in failures.items()
        }

    def is_first_of_all(self, view: RankView) -> bool:
        """Return whether all other ranks are known to have ended after this rank."""
        return all(other is view or self._is_after(other, view) for other in self.dead)

    def is_first_to_fall_silent(self, view: RankView) -> bool:
        """Return whether all ranks that ended for a reason of their own showed a sign of life after this rank's end."""
        others = [other for other in self.dead if other is not view and not self.ways[other.rank].proves.follows_soon]
        return all(last_sign_ns(other) > died_ns(view) for other in others) and not self.is_another_dying(view)

    def is_another_dying(self, view: RankView) -> bool:
        """Return whether a rank that counts as alive has shown no sign of life since this rank's end."""
        return any(last_sign_ns(other) < died_ns(view) for other in self.living)

    def has_interrupted_all(self, view: RankView) -> bool:
        """Return whether all others were interrupted, or lived on, after this rank's last sign of life."""
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
        """Return whether all other ranks have outlived this rank by more than `LIVED_ON_NS`."""
        others = [other for other in (*self.dead, *self.living) if other is not view]
        return bool(others) and min(map(last_sign_ns, others)) > died_ns(view) + LIVED_ON_NS


def last_sign_ns(view: RankView) -> int:
    """Return when a rank last showed a sign of life."""
    ended_ns = view.last.record.completed_ns if view.last is not None else None
    sign_ns = max(view.heartbeat_ns, ended_ns or 0)
    return sign_ns if view.alive else min(sign_ns, died_ns(view))


def is_exact(view: RankView) -> bool:
    """Return whether the kernel reports the order of this end among the ends on its node."""
    return view.death is not None and view.death.is_exact


def _node(view: RankView) -> tuple[str, bool]:
    return view.host, view.is_remote


def _was_unwatched(view: RankView) -> bool:
    """Return whether a rank was gone before anything watched it: it may have died right after its last sign of life."""
    return view.death is None and not view.seen_alive_ns


def _blur_ns(view: RankView) -> int:
    """Return the uncertainty of a death's time when it is compared with others."""
    seen_ns = view.death.resolution_ns if view.death is not None else 0
    return max(seen_ns, OTHER_NODE_NS, view.clock_error_ns) if view.is_remote else seen_ns


# --- ways of ending ---------------------------------------------------------------------------------------------------
# The ways in which ranks end, by wait status and tape, and what each proves about the first death.


ASKING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that launchers, schedulers, terminals and people send first."""
_HASTY: Final = frozenset({"raylet", "orted", "prted", "mpirun", "mpiexec", "orterun", "prterun"})
"""Launchers that send SIGKILL at once (Ray), or one second after SIGTERM (Open MPI). Others wait 30 s."""
_HANDLED: Final = 128
"""Programs that handle a signal exit with this number plus the signal's."""
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_ASKED_BY_EXCEPTION: Final = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|SignalException|SystemExit")


class Way(enum.Enum):
    """The way in which a rank ended."""

    RAISED = "raised"
    """By an exception of its own, which no other rank causes."""
    CRASHED = "crashed"
    """By a signal that a process only raises itself, which no other rank causes."""
    EXITED = "exited"
    """By an exit in the middle of its work. A SIGTERM handler may exit like this too."""
    KILLED = "killed"
    """By SIGKILL from the kernel, a person, or a launcher that ends the rest, immediately or after SIGTERM."""
    ABORTED = "aborted"
    """By SIGABRT in a device operation. NCCL's watchdog also aborts when a peer is gone."""
    LOST = "lost"
    """In an unknown way."""
    SWEPT = "swept"
    """By SIGKILL from a launcher that sends it where others send SIGTERM. Counts as `KILLED` or as `ASKED`."""
    ASKED = "asked"
    """On request, which says nothing about this rank."""
    INTERRUPTED = "interrupted"
    """After its last operation failed, as operations do when a peer is gone."""
    GAVE_UP = "gave up"
    """After its backend reached its timeout. Other ranks are the cause, dead or not."""

    @property
    def proves(self) -> WayTraits:
        """The conclusions from the way alone."""
        return _TRAITS[self]


@dataclass(frozen=True, slots=True)
class WayTraits:
    """The conclusions from the way in which a rank ended.

    Attributes:
        is_consequence: Whether only other ranks cause such an end.
        is_request: Whether a launcher ends the remaining ranks like this.
        is_sudden: Whether the rank ended in the middle of its work.
        follows_soon: Whether it comes soon after another rank's end. A lack of later signs of life then does not show
            that this rank was gone first.
        comes_after_shown_end: Whether a launcher ends a rank like this only after the kernel has reported another end.
            A backend may abort a rank before that.
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
    """Return the way in which a dead rank ended."""
    if has_raised(view):
        return Way.RAISED
    if _was_asked(view):
        return Way.ASKED
    failed = interrupted_operation(view)
    if failed is not None:
        return Way.GAVE_UP if timed_out(view) is not None else Way.INTERRUPTED
    number = view.death.signal if view.death is not None else 0
    is_lost = view.death is None or view.death.status is None
    if (is_lost or number == signal.SIGABRT) and any(
        timeout_passed(operation, died_ns(view)) for operation in view.open
    ):
        return Way.GAVE_UP
    if is_lost:
        return Way.LOST
    if number == signal.SIGKILL:
        return Way.SWEPT if _is_launcher_hasty(view) and may_have_been_asked(view) else Way.KILLED
    if number == signal.SIGABRT and any(int(operation.record.flags) & _ON_DEVICE for operation in view.open):
        return Way.ABORTED
    return Way.CRASHED if number else Way.EXITED


def _is_launcher_hasty(view: RankView) -> bool:
    return view.death is not None and view.death.launcher in _HASTY


def has_raised(view: RankView) -> bool:
    """Return whether a rank ended by an exception of its own, not by a failed operation or a request."""
    return failed_by_exception(view) and interrupted_operation(view) is None


def failed_by_exception(view: RankView) -> bool:
    """Return whether a rank ended by an exception, other than exceptions that signals raise in a program."""
    return view.state is TapeState.FAILED and not _ASKED_BY_EXCEPTION.search(view.failure)


def interrupted_operation(view: RankView) -> OperationView | None:
    """Return the last operation of a rank if it failed and that ended the rank; None otherwise."""
    last = view.last
    if last is None or last.record.how is not How.FAILED or went_on_after(view, last):
        return None
    return last


def has_left_by_itself(view: RankView) -> bool:
    """Return whether a rank ended by itself after a failed operation, without having been asked to end."""
    if way_of(view) is not Way.INTERRUPTED:
        return False
    return view.state is TapeState.FAILED or (view.exit_code is not None and not may_have_been_asked(view))


def may_have_been_asked(view: RankView) -> bool:
    """Return whether a rank that exited or was killed may have received SIGTERM before, and outlived it."""
    death = view.death
    return death is not None and (death.outlives_request or bool(death.stopped))


def died_ns(view: RankView) -> int:
    """Return when the end of a rank was seen, in monotonic ns."""
    return view.death.at_ns if view.death is not None else view.gone_since_ns or 0


def _was_asked(view: RankView) -> bool:
    """Return whether a rank was asked to end, as launchers and schedulers do."""
    death = view.death
    if view.asked_signal or _ASKED_BY_EXCEPTION.search(view.failure):
        return True
    if death is None:
        return False
    return death.signal in ASKING or (death.exit_code or 0) - _HANDLED in ASKING
