"""Call histories from flight recorder dumps: all recorded calls, or the last calls of condensed dumps."""

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
    is_complete,
    is_open,
    missing_from,
    number_entries,
    retired_means_ended,
)
from otel_torchdist.sources.flight.operations import group_of, operation_view

KEPT_BEFORE_OPEN: Final = 8
"""Number of calls kept in front of the first open call of a lane. They show mismatches between ranks."""
KEPT_OPEN: Final = 512
"""Number of calls kept from the first open call of a lane on."""


@dataclass(frozen=True, slots=True)
class CondensedDump:
    """A dump without its older calls.

    Attributes:
        dump: The dump, with the kept entries.
        calls: The kept entries with their positions, in order of recording.
        is_complete: Whether the original dump contains all calls since the start of the recorder.
        retired_is_ended: Whether a retired call has ended; see `numbering.retired_means_ended`.
        lost: Number of calls missing from the original dump.
        oldest_ns: First time in the original dump; 0 without entries.
        newest_ns: Last time in the original dump; 0 without entries.
    """

    dump: FlightDump
    calls: tuple[NumberedEntry, ...]
    is_complete: bool
    retired_is_ended: bool
    lost: int
    oldest_ns: int
    newest_ns: int

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.dump.rank

    def is_open(self, call: NumberedEntry) -> bool:
        """Return whether a call may still be in flight."""
        return is_open(call.entry, self.retired_is_ended)

    def up_to(self, until_ns: int) -> CondensedDump:
        """Return the dump with its end set to `until_ns`, in nanoseconds since the epoch."""
        dump = dataclasses.replace(self.dump, until_ns=until_ns)
        return dataclasses.replace(self, dump=dump, newest_ns=max(self.newest_ns, until_ns))


def condense(dump: FlightDump) -> CondensedDump:
    """Keep the open calls of each lane, and a few before them."""
    retired_is_ended = retired_means_ended(dump)
    lanes: dict[EntryLane, list[NumberedEntry]] = {}
    for call in number_entries(dump):
        lanes.setdefault(call.lane, []).append(call)
    kept = [call for calls in lanes.values() for call in _newest_calls(calls, retired_is_ended)]
    kept.sort(key=lambda call: call.entry.record_id)
    entries = dump.entries
    return CondensedDump(
        dump=dataclasses.replace(dump, entries=tuple(call.entry for call in kept)),
        calls=tuple(kept),
        is_complete=is_complete(dump),
        retired_is_ended=retired_is_ended,
        lost=missing_from(dump),
        oldest_ns=min([entry.created_ns for entry in entries], default=0),
        newest_ns=max([dump.until_ns or 0, *(entry.completed_ns or entry.created_ns for entry in entries)]),
    )


def _newest_calls(calls: list[NumberedEntry], retired_is_ended: bool) -> list[NumberedEntry]:
    """Return up to `KEPT_OPEN` calls from the first open call on, and `KEPT_BEFORE_OPEN` in front of it."""
    first = next((nth for nth, call in enumerate(calls) if is_open(call.entry, retired_is_ended)), len(calls))
    return calls[max(first - KEPT_BEFORE_OPEN, 0) : first + KEPT_OPEN]


# With `TORCH_NCCL_ENABLE_TIMING` an entry has the time between two device events around the call. Otherwise start and
# end come from the watchdog, which detects them late.


def with_durations(history: RankHistory, dump: FlightDump) -> RankHistory:
    """Return a history with device durations for the calls that were timed.

    Args:
        history: The history of the dump.
        dump: The dump.
    """
    timed = {
        entry.record_id: round(entry.duration_ms * 1e6)
        for entry in dump.entries
        if entry.duration_ms is not None and math.isfinite(entry.duration_ms) and entry.duration_ms >= 0
    }
    if not timed:
        return history
    operations = tuple(_with_duration(view, timed.get(view.record.number)) for view in history.operations)
    return dataclasses.replace(history, operations=operations)


def _with_duration(view: OperationView, duration_ns: int | None) -> OperationView:
    record = view.record
    if duration_ns is None or record.completed_ns is None:
        return view
    started_ns = record.completed_ns - duration_ns
    record = msgspec.structs.replace(record, started_ns=started_ns, started_how=How.EVENT, how=How.EVENT)
    return dataclasses.replace(view, record=record)


def history_of(dump: FlightDump, groups: RecordedGroups) -> RankHistory:
    """Return all recorded calls of a rank.

    End times are late by the polling interval of the library's watchdog. For gloo and torchcomms, the time of the end
    is unknown: the call has `How.UNTRACKED`, and its end is the time of enqueueing.

    Args:
        dump: The dump, with all its entries.
        groups: The groups of the job, from whole or condensed dumps.
    """
    retired_is_ended = retired_means_ended(dump)
    views = (
        operation_view(dump, call, group_of(groups, dump, call), retired_is_ended) for call in number_entries(dump)
    )
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
        world_size: Ranks of the job if known from elsewhere, otherwise 0.
    """
    groups = RecordedGroups([condensed.dump for condensed in dumps], world_size)
    return [_history(condensed, groups) for condensed in sorted(dumps, key=lambda condensed: condensed.rank)]


def _history(condensed: CondensedDump, groups: RecordedGroups) -> RankHistory:
    dump = condensed.dump
    # `calls` has the positions from before older calls were dropped. Counting again would give other positions.
    views = (
        operation_view(dump, call, group_of(groups, dump, call), condensed.retired_is_ended) for call in condensed.calls
    )
    return RankHistory(condensed.rank, groups.world_size, "", 0, tuple(views), condensed.lost)
