"""How a rank ended, as its wait status and its tape show it: what each way proves about who was first."""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import Flag, How, TapeState
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.verdict.deadline import timeout_passed
from otel_torchdist.verdict.giving_up import timed_out, went_on_after

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
