"""The position of each recorded call among those that it must match on other ranks.

Collectives are numbered by the recorder. Calls of send and recv are numbered per rank and group, whichever the peer is;
peers agree on such a number only in groups of two. In larger groups the calls of each pair can be counted anew if the
ring still holds all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_torchdist.sources.flight.dump import COALESCED, GLOO, EntryState, FlightDump, FlightEntry, called_name

PAIR: Final = 2


class EntryLane(NamedTuple):
    """Calls that start one after the other: a group's collectives, or those from one of its ranks to another.

    Attributes:
        group: The group's name.
        source: Rank within the group that sends; -1 for collectives.
        destination: Rank within the group that receives; -1 for collectives.
        is_unclear: Whether it is a send or receive that does not name its peer.
    """

    group: str
    source: int = -1
    destination: int = -1
    is_unclear: bool = False

    @property
    def is_collective(self) -> bool:
        """Whether it holds the group's collectives."""
        return self.destination < 0 and not self.is_unclear


class NumberedEntry(NamedTuple):
    """A recorded call and its position.

    Attributes:
        entry: The call.
        lane: Where it belongs.
        sequence: Its position there, from 1.
        aligned: Whether that position means the same on other ranks.
        batch: Equal for calls of a rank that were coalesced.
    """

    entry: FlightEntry
    lane: EntryLane
    sequence: int
    aligned: bool
    batch: int


def numbered(dump: FlightDump) -> Iterator[NumberedEntry]:
    """Yield the entries of a dump in the order in which they were recorded, without those that only close a block."""
    counts: dict[EntryLane, int] = {}
    counts_all, is_whole = counts_all_groups_together(dump), holds_first(dump)
    lanes: dict[tuple[str, str, bool], EntryLane | None] = {}  # few, and thousands of entries
    for entry in dump.entries:
        key = entry.group, entry.profiling_name, entry.is_p2p
        lane = lanes[key] if key in lanes else lanes.setdefault(key, _lane_of(entry))
        if lane is None:
            continue
        counts[lane] = count = counts.get(lane, 0) + 1
        if lane.is_collective:
            sequence = count if counts_all else entry.sequence
            yield NumberedEntry(entry, lane, sequence, is_whole or not counts_all, entry.sequence)
            continue
        is_pair = is_pair_of(dump, entry.group) and entry.p2p_sequence > 0
        aligned = not lane.is_unclear and (is_pair or is_whole)
        sequence = count if aligned and not is_pair else entry.p2p_sequence
        yield NumberedEntry(entry, lane, sequence, aligned, entry.p2p_sequence)


def _lane_of(entry: FlightEntry) -> EntryLane | None:
    """Return the lane of an entry; None for the end of a block, whose calls are recorded one by one."""
    name = called_name(entry.profiling_name)
    if name.operation == COALESCED:
        return None
    if entry.is_p2p or name.is_point_to_point:
        return EntryLane(entry.group, name.source, name.destination, name.destination < 0)
    return EntryLane(entry.group)


def holds_first(dump: FlightDump) -> bool:
    """Whether the dump holds all calls since the recorder was started."""
    entries = dump.entries
    if not entries:
        return not dump.statuses
    return entries[0].record_id == 0 and entries[-1].record_id == len(entries) - 1


def missing_from(dump: FlightDump) -> int:
    """Return the number of calls that the recorder has seen and its dump lacks: overwritten, ended, or damaged."""
    if not dump.entries:
        return max((status.enqueued for status in dump.statuses.values()), default=0)
    return max(dump.entries[-1].record_id + 1 - len(dump.entries), 0)


def is_pair_of(dump: FlightDump, group: str) -> bool:
    """Whether a group is known to have two members."""
    found = dump.groups.get(group)
    return found is not None and len(found.ranks) == PAIR


def counts_all_groups_together(dump: FlightDump) -> bool:
    """Whether the sequence numbers are those of the records, as torchcomms writes them; c10d counts from 1."""
    return bool(dump.entries) and all(entry.sequence == entry.record_id and not entry.is_p2p for entry in dump.entries)


def ends_by_retiring(dump: FlightDump) -> bool:
    """Whether what is retired has completed.

    gloo's recorder and that of torchcomms mark an end in no other way. NCCL's also retires what has timed out.
    """
    if any(called_name(entry.profiling_name).library == GLOO for entry in dump.entries[:1]):
        return True
    return not dump.statuses and all(entry.state is EntryState.SCHEDULED for entry in dump.entries)


def is_open(entry: FlightEntry, by_retiring: bool) -> bool:
    """Whether an operation is not known to have ended; see `ends_by_retiring`."""
    if entry.completed_ns is not None or entry.state is EntryState.COMPLETED:
        return False
    return not (by_retiring and entry.retired)
