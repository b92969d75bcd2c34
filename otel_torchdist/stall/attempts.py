"""Tells the ranks of this attempt of a job from what an earlier one has left."""

from __future__ import annotations

from collections.abc import Collection

from otel_torchdist.stall.world import RankView


def of_this_attempt(views: Collection[RankView]) -> list[RankView]:
    """Leave out what an earlier attempt has left.

    An id that is not agreed upon yet may be that of the attempt before, whose ranks are dead: they were gone before
    this attempt's tapes were created.
    """
    youngest_ns = max((view.created_ns for view in views if view.alive and not view.run_is_sure), default=0)
    # Heartbeats come once a second; whoever reads the tape looks more often, if he was there in time.
    return [view for view in views if view.alive or max(view.heartbeat_ns, view.seen_alive_ns) >= youngest_ns]
