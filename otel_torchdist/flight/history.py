"""The recorded calls of a rank, from its dump of the flight recorder."""

from __future__ import annotations

from otel_torchdist.flight.dump import FlightDump
from otel_torchdist.flight.groups import RecordedGroups
from otel_torchdist.flight.numbering import ends_by_retiring, missing_from, numbered
from otel_torchdist.flight.operations import group_of, operation_view
from otel_torchdist.model.history import RankHistory


def history_of(dump: FlightDump, groups: RecordedGroups) -> RankHistory:
    """All recorded calls of a rank.

    Ends are as late as the library's watchdog. For gloo and torchcomms, and where `How.UNTRACKED` says so, only that a
    call has ended is known: its end is given as the time at which it was enqueued.

    Args:
        dump: With all its entries.
        groups: Those of the job. Condensed dumps suffice for them.
    """
    by_retiring = ends_by_retiring(dump)
    views = (operation_view(dump, one, group_of(groups, dump, one), by_retiring) for one in numbered(dump))
    return RankHistory(
        rank=dump.rank,
        world_size=groups.world_size,
        host="",
        wall_offset_ns=0,
        operations=tuple(views),
        lost=missing_from(dump),
        groups=tuple(group for group in (groups.group(dump, name) for name in dump.groups) if group is not None),
    )
