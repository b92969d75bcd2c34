"""Which of the mismatches of a group holds it up.

Backends put up with some calls that do not fit: gloo adds up bytes of another type and goes on. A mismatch that every
member has come out of is no cause of a later stall, unless ranks are out of step since: one that has left a call out
is missing at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from otel_torchdist.stall.mismatch import Field, Mismatch, compare, find_mismatches
from otel_torchdist.stall.world import Arrival, Lane, RankView, Site


def find_cause(views: Mapping[int, RankView], site: Site) -> Mismatch | None:
    """The first mismatch, up to `site`, that explains why the operation there does not end.

    Args:
        views: The members that report.
        site: The operation.
    """
    for mismatch in find_mismatches(views.values(), site):
        if not ended_well(views.values(), mismatch.site) or _is_out_of_step(views, mismatch):
            return mismatch
    return None


def ended_well(views: Collection[RankView], site: Site) -> bool:
    """Whether every one of these ranks has come out of an operation without an exception."""
    return all(_has_come_out(view, site) for view in views)


def _has_come_out(view: RankView, site: Site) -> bool:
    progress = view.progress.get(site.lane)
    if progress is None or progress.completed < site.sequence or progress.failed == site.sequence:
        return False
    return view.at(site) is None  # operations of one group may end in another order than they began


def _is_out_of_step(views: Mapping[int, RankView], mismatch: Mismatch) -> bool:
    """Whether the ranks in the minority have left calls out, or made some more, from that mismatch on."""
    lane, first = mismatch.site
    entered = {rank: view.progress[lane].entered for rank, view in views.items()}
    behind = {rank for rank, count in entered.items() if count < max(entered.values())}
    ahead = entered.keys() - behind
    has_left_out = behind == set(mismatch.ranks)
    has_made_more = ahead == set(mismatch.ranks) and mismatch.field is Field.OPERATION
    if not mismatch.has_majority or not (has_left_out or has_made_more):
        return False
    leader = views[min(ahead)]
    return all(_fits_later(views[rank], leader, lane, first) for rank in behind)


def _fits_later(behind: RankView, ahead: RankView, lane: Lane, first: int) -> bool:
    """Whether the calls of one rank are those that another has made some places later."""
    own, others = _calls(behind, lane), _calls(ahead, lane)
    shift = ahead.progress[lane].entered - behind.progress[lane].entered
    pairs = [(call, others[at + shift]) for at, call in own.items() if at >= first and at + shift in others]
    return bool(pairs) and all(compare({0: one, 1: other}, Site(lane, first)) is None for one, other in pairs)


def _calls(view: RankView, lane: Lane) -> dict[int, Arrival]:
    return {arrival.sequence: arrival for arrival in view.progress[lane].recent}
