"""The recorded calls of a job, from dumps of the flight recorder."""

from __future__ import annotations

from collections.abc import Sequence

from otel_torchdist.flight.dump import FlightDump
from otel_torchdist.flight.groups import JobGroups
from otel_torchdist.flight.numbering import ends_by_retiring, numbered
from otel_torchdist.flight.operations import group_of, operation_view
from otel_torchdist.history.model import RankHistory


def histories_of(dumps: Sequence[FlightDump]) -> list[RankHistory]:
    """All recorded calls of the ranks of one job, by ascending rank.

    Ends are as late as the library's watchdog. For gloo and torchcomms, and where `How.UNTRACKED` says so, only that a
    call has ended is known: its end is given as the time at which it was enqueued.

    Args:
        dumps: One for each rank.
    """
    groups = JobGroups(dumps)
    return [_history(dump, groups) for dump in sorted(dumps, key=lambda dump: dump.rank)]


def _history(dump: FlightDump, groups: JobGroups) -> RankHistory:
    by_retiring = ends_by_retiring(dump)
    views = (operation_view(dump, one, group_of(groups, dump, one), by_retiring) for one in numbered(dump))
    return RankHistory(
        rank=dump.rank,
        world_size=groups.world_size,
        host="",
        wall_offset_ns=0,
        operations=tuple(views),
        lost=missing_from(dump),
    )


def missing_from(dump: FlightDump) -> int:
    """How many calls the recorder has seen that are not in its dump: overwritten, ended, or damaged."""
    if not dump.entries:
        return max((status.enqueued for status in dump.statuses.values()), default=0)
    return max(dump.entries[-1].record_id + 1 - len(dump.entries), 0)
