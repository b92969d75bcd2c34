"""The recorded calls of ranks, from dumps of the flight recorder: all of them, or the last ones of condensed dumps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import How
from otel_torchdist.sources.flight.dump import FlightDump
from otel_torchdist.sources.flight.groups import RecordedGroups
from otel_torchdist.sources.flight.numbering import (
    EntryLane,
    NumberedEntry,
    ends_by_retiring,
    holds_first,
    is_open,
    missing_from,
    numbered,
)
from otel_torchdist.sources.flight.operations import group_of, operation_view

KEPT_DONE: Final = 8
"""Calls of a lane that are kept before the first one that is open: ranks that differ in one differ there."""
KEPT_OPEN: Final = 512


@dataclass(frozen=True, slots=True)
class CondensedDump:
    """A dump without its older calls.

    Attributes:
        dump: The dump, with the entries that were kept.
        calls: Those entries with their positions, in the order in which they were recorded.
        is_whole: Whether the dump holds all calls since the recorder was started.
        by_retiring: Whether what is retired has ended; see `numbering.ends_by_retiring`.
        lost: How many calls are not in the dump.
        oldest_ns: Its first time; 0 if it has none.
        newest_ns: Its last time; 0 if it has none.
    """

    dump: FlightDump
    calls: tuple[NumberedEntry, ...]
    is_whole: bool
    by_retiring: bool
    lost: int
    oldest_ns: int
    newest_ns: int

    @property
    def rank(self) -> int:
        """The rank that has written it."""
        return self.dump.rank

    def is_open(self, call: NumberedEntry) -> bool:
        """Whether a call is not known to have ended."""
        return is_open(call.entry, self.by_retiring)

    def up_to(self, until_ns: int) -> CondensedDump:
        """Return the dump with a known end, in nanoseconds since the epoch."""
        dump = dataclasses.replace(self.dump, until_ns=until_ns)
        return dataclasses.replace(self, dump=dump, newest_ns=max(self.newest_ns, until_ns))


def condense(dump: FlightDump) -> CondensedDump:
    """Keep the calls of each lane that are open, and some before them."""
    by_retiring = ends_by_retiring(dump)
    lanes: dict[EntryLane, list[NumberedEntry]] = {}
    for call in numbered(dump):
        lanes.setdefault(call.lane, []).append(call)
    kept = [call for calls in lanes.values() for call in _last_of(calls, by_retiring)]
    kept.sort(key=lambda call: call.entry.record_id)
    entries = dump.entries
    return CondensedDump(
        dump=dataclasses.replace(dump, entries=tuple(call.entry for call in kept)),
        calls=tuple(kept),
        is_whole=holds_first(dump),
        by_retiring=by_retiring,
        lost=missing_from(dump),
        oldest_ns=min([entry.created_ns for entry in entries], default=0),
        newest_ns=max([dump.until_ns or 0, *(entry.completed_ns or entry.created_ns for entry in entries)]),
    )


def _last_of(calls: list[NumberedEntry], by_retiring: bool) -> list[NumberedEntry]:
    first = next((nth for nth, call in enumerate(calls) if is_open(call.entry, by_retiring)), len(calls))
    return calls[max(first - KEPT_DONE, 0) : first + KEPT_OPEN]


# With `TORCH_NCCL_ENABLE_TIMING` an entry has the time between the two events around the call on its device. Otherwise
# begin and end are only known from the watchdog, which sees them late.


def with_durations(history: RankHistory, dump: FlightDump) -> RankHistory:
    """Return a history in which calls that were timed on their device have lasted that long.

    Args:
        history: Of a dump; its numbers are those of the records.
        dump: That dump.
    """
    timed = {
        entry.record_id: round(entry.duration_ms * 1e6)
        for entry in dump.entries
        if entry.duration_ms is not None and math.isfinite(entry.duration_ms) and entry.duration_ms >= 0
    }
    if not timed:
        return history
    operations = tuple(_lasting(view, timed.get(view.record.number)) for view in history.operations)
    return dataclasses.replace(history, operations=operations)


def _lasting(view: OperationView, duration_ns: int | None) -> OperationView:
    record = view.record
    if duration_ns is None or record.completed_ns is None:
        return view
    started_ns = record.completed_ns - duration_ns
    record = msgspec.structs.replace(record, started_ns=started_ns, started_how=How.EVENT, how=How.EVENT)
    return dataclasses.replace(view, record=record)


def history_of(dump: FlightDump, groups: RecordedGroups) -> RankHistory:
    """Return all recorded calls of a rank.

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


def last_calls_of(dumps: Sequence[CondensedDump], world_size: int = 0) -> list[RankHistory]:
    """Return the calls of the ranks of one job, by ascending rank.

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
