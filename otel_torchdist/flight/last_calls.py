"""The calls that condensed dumps still hold: the last ones of every group, as histories."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.flight.condensed import CondensedDump
from otel_torchdist.flight.groups import RecordedGroups
from otel_torchdist.flight.operations import group_of, operation_view
from otel_torchdist.model.history import RankHistory


def last_calls_of(dumps: Sequence[CondensedDump], world_size: int = 0) -> list[RankHistory]:
    """The calls of the ranks of one job, by ascending rank.

    Args:
        dumps: One for each rank.
        world_size: Ranks of the job, if that is known from elsewhere; as for `moment_of`.
    """
    groups = RecordedGroups([one.dump for one in dumps], world_size)
    return [_history(one, groups) for one in sorted(dumps, key=lambda one: one.rank)]


def _history(condensed: CondensedDump, groups: RecordedGroups) -> RankHistory:
    dump = condensed.dump
    # Positions were counted before older calls were dropped; counting again would give others.
    views = (
        operation_view(dump, call, group_of(groups, dump, call), condensed.by_retiring) for call in condensed.calls
    )
    return RankHistory(condensed.rank, groups.world_size, "", 0, tuple(views), condensed.lost)
