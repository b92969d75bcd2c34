"""Finds the first death of a run. Later deaths, by launchers, kernels and backends, are consequences of it.

The evidence is the kind of each rank's end, and the order reported by the kernel. Timestamps do not count. `TABLE` maps
evidence to conclusions. `docs/deaths.md` describes the model; the tests enumerate all small worlds of it.
"""

from __future__ import annotations

import enum
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.deaths import (
    EndKind,
    Ends,
    died_ns,
    has_left_by_itself,
    has_raised,
    interrupted_operation,
    is_exact,
    may_have_been_asked,
)
from otel_torchdist.judge.verdict.giving_up import explains_ends
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.rank_state.lives import RAY, Death
from otel_torchdist.model.snapshot import RankView


@dataclass(frozen=True, slots=True)
class FirstDeath:
    """The death that explains the others.

    Attributes:
        ranks: Ranks that died first, ascending; several if their order is unknown.
        deaths: Their ends, where recorded.
        together: Whether no rank can be named, because a common cause ended all ranks or the order is unknown.
        may_follow: Whether they may be a consequence of an unseen death: they were asked to end, were interrupted in
            an operation, or ended for an unknown reason together with all others.
        is_inferred: Whether the order was inferred, not observed.
        is_known: Whether the end of each dead process was observed, or recorded on its tape.
        at_ns: When the first rank died.
        lead_ns: Time from the first death to the next; None if there is none, or if unknown.
        spread_ns: Time from the first death to the last.
        is_silence: Whether only silence shows that they died. They may be stopped instead.
        is_open: Whether no evidence shows which rank was first. False for ranks interrupted together by the loss of an
            unseen rank.
        is_alone: Whether no other rank has died.
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
    is_open: bool = False
    is_alone: bool = False


def first_death(views: Sequence[RankView]) -> FirstDeath | None:
    """Return the first death among ranks that share an operation; None if none is dead, or if they gave up waiting."""
    ends = Ends(views)
    dead = ends.dead
    if not dead or explains_ends(views):
        return None  # they gave up waiting for a live rank
    row, chosen = next((row, matches) for row in TABLE if (matches := row.find(ends)))
    start_ns, is_open = died_ns(chosen[0]), row.follows is DeathConclusion.OPEN
    later = [died_ns(view) - start_ns for view in dead if view not in chosen]
    is_seen = all(view.death is not None for view in dead)
    blur_ns = max(view.death.resolution_ns for view in dead if view.death is not None) if is_seen else 0
    return FirstDeath(
        ranks=tuple(sorted(view.rank for view in chosen)),
        deaths={view.rank: end for view in chosen if (end := view.end) is not None},
        together=row.follows is DeathConclusion.TOGETHER
        or (is_open and ends.kinds[chosen[0].rank] is not EndKind.INTERRUPTED),
        may_follow=all(_may_follow(view, ends) for view in chosen),
        is_inferred=len(chosen) > 1 or (len(dead) > 1 and not (row.is_sure and is_exact(chosen[0]))),
        is_known=all(view.death is not None or view.state is TapeState.FAILED for view in dead),
        at_ns=start_ns,
        lead_ns=min(later) if is_seen and later and min(later) >= blur_ns else None,
        spread_ns=max([0, *later]),
        is_silence=all(view.fell_silent for view in chosen),
        is_open=is_open,
        is_alone=len(dead) == 1,
    )


def _may_follow(view: RankView, ends: Ends) -> bool:
    """Return whether an unseen death may have ended a rank. A launcher ends all ranks of its node together."""
    kind = ends.kinds[view.rank]
    if kind is EndKind.LOST:
        return len(ends.views) > 1 and not ends.living
    return kind.traits.is_consequence or kind.traits.is_request


# --- the table ----------------------------------------------------------------------------------------------------


class DeathConclusion(enum.Enum):
    """The conclusion from a row of the table."""

    FIRST = "first"
    """These ranks died first; the others followed."""
    TOGETHER = "together"
    """A common cause or the same error ended all ranks; none was first."""
    OPEN = "open"
    """One of these ranks may have been first; no evidence shows which."""


@dataclass(frozen=True, slots=True)
class DeathRow:
    """A row of the table of evidence.

    Attributes:
        evidence: The evidence, in words.
        find: Returns the ranks to which the evidence applies, in the order in which their deaths were seen; empty if
            there are none.
        follows: The conclusion.
        is_sure: Whether the model allows only this conclusion from the evidence. If not, it is the most likely one.
    """

    evidence: str
    find: Callable[[Ends], Sequence[RankView]]
    follows: DeathConclusion
    is_sure: bool = True


def _same_error(ends: Ends) -> Sequence[RankView]:
    raised = [view for view in ends.dead if has_raised(view)]
    is_same = len(raised) == len(ends.dead) > 1 and len({view.failure for view in raised}) == 1
    return raised if is_same and not ends.living and not ends.has_been_outlived(raised[0]) else []


def _all_exited_in_error(ends: Ends) -> Sequence[RankView]:
    exited = [view for view in ends.dead if view.exited_in_error and ends.kinds[view.rank] is EndKind.EXITED]
    return exited if len(exited) == len(ends.dead) > 1 else []


def _raised(ends: Ends) -> Sequence[RankView]:
    raised = [view for view in ends.dead if has_raised(view)]
    return [view for view in raised if view.failure == raised[0].failure]


def _same_status(ends: Ends) -> Sequence[RankView]:
    is_known = all(view.death is not None and view.death.status is not None for view in ends.dead)
    if len(ends.dead) < 2 or len(ends.statuses) > 1 or not is_known or ends.living:
        return []
    kind = ends.kinds[ends.possibly_first[0].rank]
    # Programs that handle all exceptions exit alike after their own exception and after a failed operation.
    has_failed_operation = EndKind.INTERRUPTED in ends.kinds.values()
    is_own = kind is EndKind.EXITED and has_failed_operation and not may_have_been_asked(ends.possibly_first[0])
    return [] if kind.traits.is_consequence or is_own else ends.possibly_first


def _with_others(ends: Ends) -> Sequence[RankView]:
    hit = [view for view in ends.possibly_first if view.death is not None and view.death.with_others]
    return [view for view in hit if view.exit_code is None and not _differs_from_any(view, ends)]


def _outlived(ends: Ends) -> Sequence[RankView]:
    first = ends.possibly_first[0]
    kind = ends.kinds[first.rank]
    is_by_itself = kind.traits.is_sudden or (kind is EndKind.ABORTED and not ends.has_clean_exit)
    return [first] if is_by_itself and not _may_be_request(first, ends) and ends.has_been_outlived(first) else []


def _ended_unrequested(ends: Ends) -> Sequence[RankView]:
    sudden = [view for view in ends.possibly_first if ends.kinds[view.rank].traits.is_sudden]
    unrequested = [view for view in sudden if ends.kinds[view.rank] is EndKind.CRASHED or not may_have_been_asked(view)]
    return [view for view in unrequested if _differs_from_all(view, ends)]


def _before_all(ends: Ends) -> Sequence[RankView]:
    alone = _only_possible_first(ends, EndKind.EXITED, EndKind.KILLED, EndKind.ABORTED)
    return [view for view in alone if _differs_from_all(view, ends) and not _may_be_request(view, ends)]


def _unknown_before_all(ends: Ends) -> Sequence[RankView]:
    is_alone = bool(ends.living) or ends.has_exit_after_failure or len(ends.views) == 1
    return _only_possible_first(ends, EndKind.LOST) if is_alone else []


def _failed_alone(ends: Ends) -> Sequence[RankView]:
    first, *others = ends.dead
    if not others or ends.has_clean_exit or ends.is_another_dying(first) or not has_left_by_itself(first):
        return []
    have_followed = all(
        ends.kinds[other.rank] is EndKind.ASKED or _failed_after(other, first, ends) for other in others
    )
    return [first] if have_followed and ends.is_first_of_all(first) else []


def _asked_alone(ends: Ends) -> Sequence[RankView]:
    first, *others = ends.dead
    by_terminal = first.death is not None and first.death.signal == signal.SIGINT
    if not ends.kinds[first.rank].traits.is_request or by_terminal or ends.living or not others:
        return []
    return [first] if all(map(has_left_by_itself, others)) and ends.is_first_of_all(first) else []


def _killed_under_ray(ends: Ends) -> Sequence[RankView]:
    first, *others = ends.possibly_first
    is_killed = first.death is not None and first.death.launcher == RAY and first.death.signal == signal.SIGKILL
    rest = [view for view in ends.views if view is not first]
    if others or not is_killed or not any(interrupted_operation(view) is not None for view in rest):
        return []
    # Where Ray ends all workers, it ends them alike.
    have_left = all(view.death is not None and view.death.is_killed_by_ray for view in rest)
    return [first] if have_left and all(ends.is_after(view, first) for view in rest) else []


def _asked(ends: Ends) -> Sequence[RankView]:
    return ends.possibly_first if all(ends.kinds[view.rank].traits.is_request for view in ends.possibly_first) else []


TABLE: Final = (
    # Errors of the program come first: they end a rank before launchers and backends end other ranks.
    DeathRow("all raised the same exception", _same_error, DeathConclusion.TOGETHER),
    DeathRow("all came to the end of their program with an error code", _all_exited_in_error, DeathConclusion.TOGETHER),
    DeathRow("an exception of the program", _raised, DeathConclusion.FIRST),
    # One signal, or one signal handler, ended all ranks. Ranks that lived on for seconds did not get it.
    DeathRow("exit, crash or SIGKILL, and all others lived on for seconds", _outlived, DeathConclusion.FIRST),
    DeathRow("the same wait status for all", _same_status, DeathConclusion.TOGETHER),
    DeathRow("a signal had hit other ranks too when its end was reported", _with_others, DeathConclusion.TOGETHER),
    # No launcher ends a rank in this way: it sends SIGTERM first, and SIGKILL only to ranks that outlive SIGTERM.
    DeathRow(
        "exit, crash or SIGKILL of a rank that SIGTERM would have ended immediately",
        _ended_unrequested,
        DeathConclusion.FIRST,
    ),
    # Launchers and backends also end ranks in this way, but only after another end.
    DeathRow("exit, SIGKILL or NCCL's SIGABRT, and its end came before all others", _before_all, DeathConclusion.FIRST),
    DeathRow("an unknown end, before all others", _unknown_before_all, DeathConclusion.FIRST, is_sure=False),
    DeathRow(
        "its operation failed, and it ended before the others", _failed_alone, DeathConclusion.FIRST, is_sure=False
    ),
    DeathRow(
        "SIGKILL before all others, whose operations failed and which Ray then ended with its exit code",
        _killed_under_ray,
        DeathConclusion.FIRST,
        is_sure=False,
    ),
    # A request to end is no evidence about a rank, unless no other rank got a request.
    DeathRow("asked to end before all others, which were not asked", _asked_alone, DeathConclusion.FIRST),
    DeathRow("asked to end", _asked, DeathConclusion.TOGETHER),
    DeathRow("anything else", lambda ends: ends.possibly_first, DeathConclusion.OPEN),
)
"""Rows in order of precedence: the first row with evidence decides."""


def _only_possible_first(ends: Ends, *kinds: EndKind) -> Sequence[RankView]:
    """Return the only rank that may have died first without a request, if its end is of one of these kinds."""
    candidates = [view for view in ends.possibly_first if not ends.kinds[view.rank].traits.is_request]
    if len(candidates) != 1 or ends.kinds[candidates[0].rank] not in kinds or ends.has_clean_exit:
        return []
    first = candidates[0]
    # No launcher sends SIGKILL before an end was reported, but a backend may abort a rank earlier.
    is_before = ends.kinds[first.rank].traits.comes_after_shown_end or ends.is_first_to_fall_silent(first)
    return candidates if (is_before and ends.is_first_of_all(first)) or ends.has_interrupted_all(first) else []


def _failed_after(view: RankView, first: RankView, ends: Ends) -> bool:
    """Return whether a rank's operation failed only after the end of `first` was reported."""
    failed = interrupted_operation(view)
    is_consequence = ends.kinds[view.rank] is EndKind.INTERRUPTED
    return is_consequence and failed is not None and (failed.record.completed_ns or 0) > died_ns(first)


def _differs_from_all(view: RankView, ends: Ends) -> bool:
    """Return whether a rank's end is known to differ from the ends of all other ranks."""
    return bool(ends.living) or len(ends.dead) == 1 or _differs_from_any(view, ends)


def _differs_from_any(view: RankView, ends: Ends) -> bool:
    """Return whether the end of another rank is known to differ."""
    status = view.death.status if view.death is not None else None
    return ends.has_exit_after_failure or (status is not None and not ends.statuses <= {status})


def _may_be_request(view: RankView, ends: Ends) -> bool:
    """Return whether a rank that exited, or got SIGKILL, may have ended because of a request to several ranks."""
    if ends.kinds[view.rank] is EndKind.ABORTED or not may_have_been_asked(view):
        return False
    interrupted = [other for other in ends.dead if ends.kinds[other.rank] is EndKind.INTERRUPTED]
    by_themselves = [other for other in interrupted if has_left_by_itself(other)]
    if ends.kinds[view.rank] is EndKind.KILLED:
        # Among ranks that outlive SIGTERM until SIGKILL, each end may interrupt the next rank.
        return len(by_themselves) < len(interrupted)
    return not any(other.exit_code != view.exit_code for other in by_themselves)
