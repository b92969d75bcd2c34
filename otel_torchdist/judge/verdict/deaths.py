"""The order of deaths: the dead ranks that may have died before all others.

Two facts order deaths. First, the kernel reports the exits of one node's processes in order, even if they are read
late, and a launcher reacts only to a reported exit. Second, a rank that shows a sign of life is still alive. Timestamps
of deaths do not order them, because a loaded node delays them without bound.

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
from otel_torchdist.model.rank_state.lives import RAY
from otel_torchdist.model.snapshot import RankView

OTHER_NODE_NS: Final = 5_000_000
"""Lower bound in ns on the error when clocks of two nodes are compared."""
LIVED_ON_NS: Final = 5_000_000_000
"""Time in ns within which a common cause ends all ranks, on any node. Launchers other than mpirun (1 s) wait longer
between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Ends:
    """The observed ends of a run's ranks."""

    views: Sequence[RankView]

    @cached_property
    def dead(self) -> list[RankView]:
        """The dead ranks, in the order in which their ends were seen."""
        return sorted((view for view in self.views if view.is_dead), key=died_ns)

    @cached_property
    def kinds(self) -> dict[int, EndKind]:
        """The kind of each dead rank's end, by rank."""
        return {view.rank: end_kind_of(view) for view in self.dead}

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
    def has_exit_after_failure(self) -> bool:
        """Whether a rank exited by itself after an operation had failed."""
        return any(map(has_left_by_itself, self.dead))

    @cached_property
    def has_clean_exit(self) -> bool:
        """Whether a rank has exited without an error. Its exit may have ended ranks that needed it."""
        return len(self.living) + len(self.dead) < len(self.views)

    @cached_property
    def possibly_first(self) -> list[RankView]:
        """The dead ranks that may have died first: no other rank is known to have ended before them.

        Interrupted ranks are left out, unless all are interrupted.
        """
        suspects = [view for view in self.dead if self.kinds[view.rank] is not EndKind.INTERRUPTED]
        if not suspects:
            return self.dead[:1]
        ended: dict[tuple[str, bool], int] = {}
        for view in suspects:
            if is_exact(view):
                ended.setdefault(_node(view), died_ns(view))
        blur_ns = max(map(_blur_ns, suspects))
        surely_ns = died_ns(suspects[0]) + blur_ns
        possibly_first = [
            view
            for view in suspects
            if last_sign_ns(view) <= surely_ns and (not is_exact(view) or self.gone_ns(view) <= ended[_node(view)])
        ]
        # The first dead rank must have been gone when the first operation failed.
        return [view for view in possibly_first if last_sign_ns(view) <= self._interrupted_ns] or possibly_first

    @cached_property
    def _interrupted_ns(self) -> float:
        """When the first operation failed, in monotonic ns; infinity if none failed."""
        interrupted = [view for view in self.dead if self.kinds[view.rank] is not EndKind.GAVE_UP]
        failed = [operation for view in interrupted if (operation := interrupted_operation(view)) is not None]
        return min((operation.record.completed_ns or 0 for operation in failed), default=math.inf)

    def gone_ns(self, view: RankView) -> int:
        """Return the earliest moment at which a dead rank may have been gone."""
        sign_ns, ended_ns = last_sign_ns(view), died_ns(view)
        if _was_unwatched(view):
            return sign_ns
        if may_have_been_asked(view) and self.kinds[view.rank] is not EndKind.CRASHED:
            return ended_ns  # it may have hung from its last sign of life until SIGKILL followed SIGTERM
        interrupted = interrupted_operation(view)
        for operation_id, failed in self._failures.items():
            is_other = interrupted is None or interrupted.operation_id != operation_id
            if is_other and failed[0][1].involves(view.rank):
                after = bisect_left(failed, sign_ns, key=lambda failure: failure[0])
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
            if self.kinds[view.rank] is EndKind.ABORTED:
                for operation in view.open:
                    failures[operation.operation_id].append((died_ns(view), operation))
        return {
            operation_id: sorted(failed, key=lambda interrupted: interrupted[0])
            for operation_id, failed in failures.items()
        }

    def is_first_of_all(self, view: RankView) -> bool:
        """Return whether all other ranks are known to have ended after this rank."""
        return all(other is view or self.is_after(other, view) for other in self.dead)

    def is_first_to_fall_silent(self, view: RankView) -> bool:
        """Return whether all other dead ranks showed a sign of life after this rank's end.

        Ranks whose kind of end `follows_soon` do not count.
        """
        others = [other for other in self.dead if other is not view and not self.kinds[other.rank].traits.follows_soon]
        return all(last_sign_ns(other) > died_ns(view) for other in others) and not self.is_another_dying(view)

    def is_another_dying(self, view: RankView) -> bool:
        """Return whether a rank that counts as alive has shown no sign of life since this rank's end."""
        return any(last_sign_ns(other) < died_ns(view) for other in self.living)

    def has_interrupted_all(self, view: RankView) -> bool:
        """Return whether all other ranks were interrupted, or stayed alive, after this rank's last sign of life."""
        others = [other for other in self.dead if other is not view]
        if self._interrupted_ns == math.inf or self.is_another_dying(view):
            return False
        return all(self._was_interrupted_after(other, last_sign_ns(view)) for other in others)

    def _was_interrupted_after(self, view: RankView, moment_ns: int) -> bool:
        if self.kinds[view.rank] is not EndKind.INTERRUPTED:
            return last_sign_ns(view) > self._interrupted_ns >= moment_ns
        failed = interrupted_operation(view)
        return failed is not None and (failed.record.completed_ns or 0) >= moment_ns

    def is_after(self, other: RankView, first: RankView) -> bool:
        """Return whether a rank is known to have ended after another one."""
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
    """Return whether no agent saw a rank alive. It may have died immediately after its last sign of life."""
    return view.death is None and not view.seen_alive_ns


def _blur_ns(view: RankView) -> int:
    """Return the uncertainty of a death's time when it is compared with others."""
    seen_ns = view.death.resolution_ns if view.death is not None else 0
    return max(seen_ns, OTHER_NODE_NS, view.clock_error_ns) if view.is_remote else seen_ns


# --- kinds of ends ---------------------------------------------------------------------------------------------------
# Classifies the ends of ranks by wait status and tape. Each kind of end allows conclusions about the first death.


ASKING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that launchers, schedulers, terminals and people send first."""
_HASTY: Final = frozenset({RAY, "orted", "prted", "mpirun", "mpiexec", "orterun", "prterun"})
"""Launchers that kill the other ranks immediately (Ray), or one second after SIGTERM (Open MPI). Others wait 30 s."""
_HANDLED: Final = 128
"""Offset of exit codes: a program that handles a signal exits with 128 plus the signal number."""
_ON_DEVICE: Final = int(Flag.ON_DEVICE)
_ASKED_BY_EXCEPTION: Final = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|SignalException|SystemExit")


class EndKind(enum.Enum):
    """The kind of a rank's end. Each member names its cause."""

    RAISED = "raised"
    """By an exception of the program, which no other rank causes."""
    CRASHED = "crashed"
    """By a signal that a process only raises itself, which no other rank causes."""
    EXITED = "exited"
    """By an exit during its work, possibly in a SIGTERM handler."""
    KILLED = "killed"
    """By SIGKILL from the kernel, a person, or a launcher that ends the remaining ranks."""
    ABORTED = "aborted"
    """By SIGABRT in a device operation. NCCL's watchdog also aborts when a peer is gone."""
    LOST = "lost"
    """Unknown."""
    SWEPT = "swept"
    """By SIGKILL from a launcher that sends no SIGTERM first. Counts as `KILLED` or as `ASKED`."""
    ASKED = "asked"
    """By a request to end, which is no evidence about this rank."""
    INTERRUPTED = "interrupted"
    """After its last operation failed. Operations fail when a peer is gone."""
    GAVE_UP = "gave up"
    """After the backend's timeout. Other ranks, dead or alive, are the cause."""

    @property
    def traits(self) -> EndTraits:
        """The conclusions from this kind of end."""
        return _TRAITS[self]


@dataclass(frozen=True, slots=True)
class EndTraits:
    """The conclusions from a kind of end.

    Attributes:
        is_consequence: Whether only other ranks cause such an end.
        is_request: Whether a launcher ends the remaining ranks in this way.
        is_sudden: Whether the rank ended during its work.
        follows_soon: Whether such an end comes soon after another rank's end. A lack of later signs of life is then no
            evidence that this rank died first.
        comes_after_shown_end: Whether a launcher ends a rank in this way only after the kernel has reported another
            end. A backend may abort a rank earlier.
    """

    is_consequence: bool = False
    is_request: bool = False
    is_sudden: bool = False
    follows_soon: bool = False
    comes_after_shown_end: bool = False


def _traits(kind: EndKind) -> EndTraits:
    match kind:
        case EndKind.INTERRUPTED:
            return EndTraits(is_consequence=True, follows_soon=True)
        case EndKind.GAVE_UP:
            return EndTraits(is_consequence=True)
        case EndKind.ASKED:
            return EndTraits(is_request=True, follows_soon=True)
        case EndKind.SWEPT:
            return EndTraits(is_request=True)
        case EndKind.EXITED | EndKind.KILLED:
            return EndTraits(is_sudden=True, comes_after_shown_end=True)
        case EndKind.CRASHED:
            return EndTraits(is_sudden=True)
        case EndKind.RAISED | EndKind.ABORTED | EndKind.LOST:
            return EndTraits()


_TRAITS: Final = {kind: _traits(kind) for kind in EndKind}


def end_kind_of(view: RankView) -> EndKind:
    """Classify the end of a dead rank."""
    if has_raised(view):
        return EndKind.RAISED
    if _was_asked(view):
        return EndKind.ASKED
    failed = interrupted_operation(view)
    if failed is not None:
        return EndKind.GAVE_UP if timed_out(view) is not None else EndKind.INTERRUPTED
    number = view.death.signal if view.death is not None else 0
    is_lost = view.death is None or view.death.status is None
    if (is_lost or number == signal.SIGABRT) and any(
        timeout_passed(operation, died_ns(view)) for operation in view.open
    ):
        return EndKind.GAVE_UP
    if is_lost:
        return EndKind.LOST
    if number == signal.SIGKILL or (view.death is not None and view.death.is_killed_by_ray):
        return EndKind.SWEPT if _is_launcher_hasty(view) and may_have_been_asked(view) else EndKind.KILLED
    if number == signal.SIGABRT and any(int(operation.record.flags) & _ON_DEVICE for operation in view.open):
        return EndKind.ABORTED
    return EndKind.CRASHED if number else EndKind.EXITED


def _is_launcher_hasty(view: RankView) -> bool:
    return view.death is not None and view.death.launcher in _HASTY


def has_raised(view: RankView) -> bool:
    """Return whether an exception of the program ended a rank, not a failed operation or a request."""
    return failed_by_exception(view) and interrupted_operation(view) is None


def failed_by_exception(view: RankView) -> bool:
    """Return whether a rank ended by an exception, other than exceptions that signals raise in a program."""
    return view.state is TapeState.FAILED and not _ASKED_BY_EXCEPTION.search(view.failure)


def interrupted_operation(view: RankView) -> OperationView | None:
    """Return the last operation of a rank if its failure ended the rank; None otherwise."""
    last = view.last
    if last is None or last.record.how is not How.FAILED or went_on_after(view, last):
        return None
    return last


def has_left_by_itself(view: RankView) -> bool:
    """Return whether a rank ended by itself after a failed operation, without having been asked to end."""
    if end_kind_of(view) is not EndKind.INTERRUPTED:
        return False
    return view.state is TapeState.FAILED or (view.exit_code is not None and not may_have_been_asked(view))


def may_have_been_asked(view: RankView) -> bool:
    """Return whether a rank that exited or was killed may have received SIGTERM before, and outlived it."""
    death = view.death
    return death is not None and (death.survives_sigterm or bool(death.stopped))


def died_ns(view: RankView) -> int:
    """Return the monotonic time in ns at which the end of a rank was observed."""
    return view.death.at_ns if view.death is not None else view.gone_since_ns or 0


def _was_asked(view: RankView) -> bool:
    """Return whether a rank was asked to end, as launchers and schedulers do."""
    death = view.death
    if view.asked_signal or _ASKED_BY_EXCEPTION.search(view.failure):
        return True
    if death is None:
        return False
    return death.signal in ASKING or (death.exit_code or 0) - _HANDLED in ASKING
