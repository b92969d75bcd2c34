"""What judging needs of a dump: a rank's last calls and how far it has come. The rest need not stay in memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from otel_torchdist.flight.dump import FlightDump
from otel_torchdist.flight.numbering import (
    EntryLane,
    NumberedEntry,
    ends_by_retiring,
    holds_first,
    is_open,
    missing_from,
    numbered,
)

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
        """The same dump, if it is known from elsewhere up to when it reaches, in nanoseconds since the epoch."""
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
