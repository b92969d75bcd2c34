"""Which of a run's ranks died first: what launchers and backends do to the others is a consequence of that.

A rank that was interrupted in an operation, or asked to end, followed another one; among the rest, the time decides.
Where the kernel's order is not known, the tapes show more than the times do.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.job.runs.deaths import Death
from otel_torchdist.tape.layout import How, TapeState
from otel_torchdist.verdict.giving_up import explains_ends
from otel_torchdist.verdict.waits import DYING_NS
from otel_torchdist.world.calls import Channel, OperationView
from otel_torchdist.world.model import RankView

AT_ONCE_NS: Final = 250_000_000
"""Ranks that one signal ends may die this far apart, since each has to free its memory."""
AT_ONCE_UNKNOWN_NS: Final = 30_000_000
"""The same if it is not known what ended them: a launcher may react to a death within 100 ms."""
THROWN_OUT_NS: Final = 20_000_000
"""If none dies within this time of the first, which interrupted one in an operation, they were not ended together."""
SAME_ERROR_NS: Final = 2_000_000_000
SLOW_END_NS: Final = 10_000_000_000
"""How long a process may take to end after its connections are gone: drivers clean up."""
OTHER_NODE_NS: Final = 5_000_000
"""How precisely the clocks of two nodes are compared at best."""
_ASKED: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_ASKED_BY_EXCEPTION: Final = re.compile(r"KeyboardInterrupt|SIGTERM|SIGINT|SignalException|SystemExit")


@dataclass(frozen=True, slots=True)
class FirstDeath:
    """The death that explains the others.

    Attributes:
        ranks: The ranks that died first; more than one if their order is not known.
        deaths: What is known about their ends.
        together: Whether none was first: something ended all of them at the same moment.
        may_follow: Whether they ended as ranks do after the death of another one, which may not be seen: asked to end,
            interrupted in an operation, or with all others in a way that is not known.
        is_inferred: Whether the order was not seen, but follows from other signs.
        is_known: Whether the end of each process was seen, or recorded on its tape.
        at_ns: When the first one died.
        lead_ns: How long after that the next one died; None if none did, or if that is not known.
        spread_ns: How long after that the last one died.
        is_silence: Whether only their silence shows that they died: they may as well have been stopped.
    """

    ranks: tuple[int, ...]
    deaths: Mapping[int, Death]
    together: bool
    may_follow: bool
    is_inferred: bool
    is_known: bool
    at_ns: int
    lead_ns: int | None
    spread_ns: int
    is_silence: bool = False


def first_death(views: Sequence[RankView], interrupted_ns: int | None = None) -> FirstDeath | None:
    """The death that explains the others among ranks that share an operation; None if none is dead.

    Args:
        views: These ranks, as far as they are seen.
        interrupted_ns: When the first rank was interrupted in that operation; None if none was.
    """
    dead = [view for view in views if view.is_dead]
    if not dead or explains_ends(views):
        return None  # they gave up waiting for a rank that lived
    causes = _unexplained(dead) or dead
    causes.sort(key=_died_ns)
    start_ns = _died_ns(causes[0])
    tied = [view for view in causes if _may_be_first(view, causes[0])]
    chosen = _narrowed(tied, interrupted_ns) if len(tied) > 1 else tied
    is_known = all(_is_known(view) for view in dead)
    later = [_died_ns(view) - start_ns for view in dead if view not in chosen]
    is_seen = all(view.death is not None for view in dead)
    return FirstDeath(
        ranks=tuple(sorted(view.rank for view in chosen)),
        deaths={view.rank: end for view in chosen if (end := view.end) is not None},
        together=_was_with_others(causes[0], views)
        or (_ended_together(causes, dead) if is_seen else _vanished_together(chosen, dead)),
        may_follow=all(_may_follow(view, views) for view in chosen),
        is_inferred=len(tied) > 1 or (len(dead) > 1 and not all(_is_exact(view) for view in causes)),
        is_known=is_known,
        at_ns=start_ns,
        lead_ns=min(later) if is_seen and later and min(later) >= 0 else None,
        spread_ns=max([0, *later]),
        is_silence=all(view.fell_silent for view in chosen),
    )


def has_raised(view: RankView) -> bool:
    """Whether an exception of its own ended a rank, not a failed operation or a request to end."""
    return failed_by_exception(view) and interrupted_operation(view) is None


def failed_by_exception(view: RankView) -> bool:
    """Whether an exception ended a rank, and not one by which a program ends when a signal asks it to."""
    return view.state is TapeState.FAILED and not _was_interrupted(view)


def interrupted_operation(view: RankView) -> OperationView | None:
    """The last operation of a rank, if it failed; None if it did not."""
    last = view.last
    return last if last is not None and last.record.how is How.FAILED else None


def _unexplained(dead: Sequence[RankView]) -> list[RankView]:
    """The ranks whose deaths are no consequence of that of another one."""
    followed_ns = _followed_ns(dead)
    return [view for view in dead if not _is_explained(view, dead, followed_ns)]


def _is_explained(view: RankView, dead: Sequence[RankView], followed_ns: float) -> bool:
    interrupted = interrupted_operation(view)
    if interrupted is None:  # thousands of ranks may have ended so: each must not be compared with all others
        return _was_asked(view) and followed_ns <= _died_ns(view)
    return any(_interrupts(other, view, interrupted) for other in dead if other is not view)


def _interrupts(other: RankView, view: RankView, interrupted: OperationView) -> bool:
    """Whether `view` was interrupted in an operation because `other` has died."""
    own = interrupted_operation(other)
    if (own is not None and own.operation_id == interrupted.operation_id) or not _takes_part(other.rank, interrupted):
        return False
    if has_raised(other):
        return True
    interrupted_ns, ended_ns = interrupted.record.completed_ns or 0, _died_ns(other)
    if _was_unwatched(other):
        return _last_sign_ns(other) <= interrupted_ns
    if ended_ns <= _died_ns(view) and ended_ns - DYING_NS <= interrupted_ns:
        return True
    return _broke_off(other) and _broke_off_ns(other) <= interrupted_ns


def _takes_part(rank: int, operation: OperationView) -> bool:
    channel = operation.operation_id.channel
    if channel.is_point_to_point:
        return rank in (channel.source, channel.destination)
    return operation.group is not None and rank in operation.group.members


def _was_interrupted(view: RankView) -> bool:
    return bool(_ASKED_BY_EXCEPTION.search(view.failure))


def _was_asked(view: RankView) -> bool:
    """Whether the rank was asked to end, as launchers and schedulers do."""
    if has_raised(view):
        return False
    by_signal = view.asked_signal or (view.death is not None and view.death.signal in _ASKED)
    return bool(by_signal) or _was_interrupted(view)


def _may_follow(view: RankView, views: Sequence[RankView]) -> bool:
    """Whether a rank may have ended because of one that is not seen. A launcher ends all ranks of its node at once."""
    if has_raised(view):
        return False
    if interrupted_operation(view) is not None or _was_asked(view):
        return True
    is_known = view.death is not None and view.death.status is not None
    return not is_known and len(views) > 1 and not any(other.alive and other.death is None for other in views)


def _was_struck(view: RankView) -> bool:
    return view.death is not None and view.death.signal != 0 and not _was_asked(view)


def _broke_off(view: RankView) -> bool:
    """Whether a process ended amid its work for no reason that came from others: struck, or by `exit` in its code."""
    if _was_struck(view):
        return True
    if view.exit_code is None or interrupted_operation(view) is not None:
        return False
    return not has_raised(view) and not _was_asked(view)


def _followed_ns(dead: Sequence[RankView]) -> float:
    """From when on a rank that was asked to end followed one that raised, or broke off; infinity without one.

    A process may also crash or exit because it has lost a peer: that counts only if ranks were interrupted before.
    """
    if any(map(has_raised, dead)):
        return -math.inf
    ended = [view for view in dead if _broke_off(view)]
    killed = (_broke_off_ns(view) for view in ended if view.death is not None and view.death.signal == signal.SIGKILL)
    interrupted = ((view, one) for view in dead if (one := interrupted_operation(view)) is not None)
    since_ns = min(((one.record.completed_ns or 0) + _blur_ns(view) for view, one in interrupted), default=math.inf)
    return min(min(killed, default=math.inf), max(since_ns, min(map(_broke_off_ns, ended), default=math.inf)))


def _broke_off_ns(view: RankView) -> int:
    """When a rank that broke off may have been dead already.

    The kernel may take seconds to end a process, and on a busy node its agent to see that. A launcher is faster.
    """
    return max(_last_sign_ns(view), _died_ns(view) - SLOW_END_NS) - _blur_ns(view)


def _died_ns(view: RankView) -> int:
    return view.death.at_ns if view.death is not None else view.gone_since_ns or 0


def _may_be_first(view: RankView, first: RankView) -> bool:
    """Whether a rank may have died as early as the one whose death has the earliest time."""
    if _died_ns(view) - _died_ns(first) <= max(_blur_ns(view), _blur_ns(first)):
        return True
    return _was_unwatched(view) and first.death is not None and _last_sign_ns(view) <= _died_ns(first)


def _was_unwatched(view: RankView) -> bool:
    """Whether a rank was gone before anything watched it: it may have died at any time since its last sign of life."""
    return view.death is None and not view.seen_alive_ns


def _blur_ns(view: RankView) -> int:
    """How inaccurate the time of a death may be when it is compared with others."""
    seen_ns = view.death.resolution_ns if view.death is not None else 0
    return max(seen_ns, OTHER_NODE_NS, view.clock_error_ns) if view.is_remote else seen_ns


def _is_exact(view: RankView) -> bool:
    return view.death is not None and view.death.is_exact


def _is_known(view: RankView) -> bool:
    return view.death is not None or view.state is TapeState.FAILED


# --- deaths whose order is not known ----------------------------------------------------------------------------


def _narrowed(tied: list[RankView], interrupted_ns: int | None) -> list[RankView]:
    """The ranks that other signs show to have been first; all if there are no such signs."""
    raised = [view for view in tied if has_raised(view)]
    if raised:
        return raised
    # A launcher asks the others to end.
    behind = _behind([view for view in tied if not _was_asked(view)] or tied)
    if interrupted_ns is None:
        return behind
    return [view for view in behind if _last_sign_ns(view) <= interrupted_ns] or behind


def _behind(tied: list[RankView]) -> list[RankView]:
    """The ranks that have entered fewer operations of a group that all of them share; all if none has."""
    shared = set[Channel].intersection(
        *({channel for channel in view.progress if _is_shared(channel)} for view in tied)
    )
    for channel in sorted(shared):
        least = min(view.progress[channel].entered for view in tied)
        behind = [view for view in tied if view.progress[channel].entered == least]
        if len(behind) < len(tied) and all(view.progress[channel].aligned for view in tied):
            return behind
    return tied


def _is_shared(channel: Channel) -> bool:
    return not channel.is_point_to_point


def _last_sign_ns(view: RankView) -> int:
    ended_ns = view.last.record.completed_ns if view.last is not None else None
    return max(view.heartbeat_ns, ended_ns or 0)


# --- ended from outside -------------------------------------------------------------------------------------------


def _was_with_others(first: RankView, views: Sequence[RankView]) -> bool:
    """Whether the same signal has ended others, or is about to: they were on their way when the first was gone."""
    if first.death is None or not first.death.with_others or has_raised(first) or first.death.exit_code is not None:
        return False
    if _was_struck_alone(first, views):
        return False
    return any(view is not first and (view.death is None or _way(view) == _way(first)) for view in views)


def _ended_together(causes: Sequence[RankView], dead: Sequence[RankView]) -> bool:
    """Whether one and the same thing ended all of them: a cancelled job, or an error that all of them raised."""
    first = causes[0]
    if len(dead) < 2 or interrupted_operation(first) is not None:
        return False
    if _was_interrupted(first) or (first.death is not None and first.death.signal == signal.SIGINT):
        return True  # a terminal sends it to all
    if any(_way(view) != _way(first) for view in causes):
        return False
    if all(view.exited_in_error and interrupted_operation(view) is None for view in dead):
        return True  # their program's own result
    # On a busy machine all ends may be seen in the same moment.
    if _was_struck_alone(first, dead) or _exited_alone(first, dead):
        return False
    start_ns = _died_ns(first)
    if len(causes) < len(dead):
        ends = sorted(map(_died_ns, dead))
        # On a loaded machine one signal to all takes effect at different times, but a launcher needs longer to react.
        most_ns = AT_ONCE_NS if all(map(_was_asked, dead)) else THROWN_OUT_NS
        return not has_raised(first) and ends[1] - ends[0] < THROWN_OUT_NS and ends[-1] - ends[0] < most_ns
    if has_raised(first):
        return _died_ns(causes[-1]) - start_ns < SAME_ERROR_NS
    is_known = all(view.death is not None and view.death.status is not None for view in causes)
    return _died_ns(causes[1]) - start_ns < (AT_ONCE_NS if is_known else AT_ONCE_UNKNOWN_NS)


def _was_struck_alone(first: RankView, views: Sequence[RankView]) -> bool:
    """Whether a signal struck the first that cannot have ended all: others exited, or were asked to."""
    return _was_struck(first) and any(_has_other_end(view, first) for view in views)


def _exited_alone(first: RankView, views: Sequence[RankView]) -> bool:
    """Whether the first exited amid its work, with a code that no other rank has."""
    if not first.exit_code or not _broke_off(first):
        return False
    return all(view is first or view.exit_code != first.exit_code for view in views)


def _has_other_end(view: RankView, first: RankView) -> bool:
    """Whether a rank is known to have ended in another way than the first."""
    one, other = view.death, first.death
    if one is None or other is None or None in (one.status, other.status):
        return False
    return one.signal != other.signal


def _vanished_together(chosen: Sequence[RankView], dead: Sequence[RankView]) -> bool:
    """Whether nothing shows which rank was first, if they were only seen to be gone from one pass to the next."""
    if len(dead) < 2 or any(view.death is not None or has_raised(view) or interrupted_operation(view) for view in dead):
        return False
    gone = list(map(_died_ns, dead))
    return max(gone) - min(gone) <= AT_ONCE_NS and {*_ranks(_behind([*dead]))} != {*_ranks(chosen)}


def _ranks(views: Sequence[RankView]) -> list[int]:
    return [view.rank for view in views]


def _way(view: RankView) -> str:
    """How a rank ended, as far as it can be the same for all."""
    if has_raised(view):
        return view.failure
    if _was_asked(view):
        return "asked"
    return "" if view.death is None else str(view.death.status)
