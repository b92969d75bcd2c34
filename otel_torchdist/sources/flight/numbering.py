"""Positions of recorded calls, comparable between ranks.

The recorder numbers collectives. It numbers sends and receives per rank and group, without regard to the peer, so
peers agree on these numbers only in groups of two. In larger groups we count the calls of each pair ourselves, if the
ring buffer still contains all calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_torchdist.sources.flight.dump import (
    COALESCED,
    GLOO,
    EntryState,
    FlightDump,
    FlightEntry,
    parse_profiling_name,
)

PAIR: Final = 2


class EntryLane(NamedTuple):
    """A sequence of calls that start one after the other: a group's collectives, or the messages of one direction.

    Attributes:
        group: The group's name.
        source: Rank of the sender within the group; -1 for collectives.
        destination: Rank of the receiver within the group; -1 for collectives.
        has_unknown_peers: Whether the lane contains sends and receives without a recorded peer.
    """

    group: str
    source: int = -1
    destination: int = -1
    has_unknown_peers: bool = False

    @property
    def is_collective(self) -> bool:
        """Whether the lane contains the group's collectives."""
        return self.destination < 0 and not self.has_unknown_peers


class NumberedEntry(NamedTuple):
    """A recorded call and its position.

    Attributes:
        entry: The call.
        lane: Its lane.
        sequence: Its position in the lane, from 1.
        aligned: Whether the position is comparable between ranks.
        batch: Number shared by the coalesced calls of a rank.
    """

    entry: FlightEntry
    lane: EntryLane
    sequence: int
    aligned: bool
    batch: int


def number_entries(dump: FlightDump) -> Iterator[NumberedEntry]:
    """Yield the entries of a dump in order of recording, without the entries that end a block of coalesced calls."""
    counts: dict[EntryLane, int] = {}
    counts_together, has_all = counts_all_groups_together(dump), is_complete(dump)
    lanes: dict[tuple[str, str, bool], EntryLane | None] = {}  # a cache: thousands of entries share a few lanes
    for entry in dump.entries:
        key = entry.group, entry.profiling_name, entry.is_p2p
        lane = lanes[key] if key in lanes else lanes.setdefault(key, _lane_of(entry))
        if lane is None:
            continue
        counts[lane] = count = counts.get(lane, 0) + 1
        if lane.is_collective:
            sequence = count if counts_together else entry.sequence
            yield NumberedEntry(entry, lane, sequence, has_all or not counts_together, entry.sequence)
            continue
        is_pair = is_pair_of(dump, entry.group) and entry.p2p_sequence > 0
        aligned = not lane.has_unknown_peers and (is_pair or has_all)
        sequence = count if aligned and not is_pair else entry.p2p_sequence
        yield NumberedEntry(entry, lane, sequence, aligned, entry.p2p_sequence)


def _lane_of(entry: FlightEntry) -> EntryLane | None:
    """Return the lane of an entry; None for the end of a block of coalesced calls."""
    name = parse_profiling_name(entry.profiling_name)
    if name.operation == COALESCED:
        return None
    if entry.is_p2p or name.is_point_to_point:
        return EntryLane(entry.group, name.source, name.destination, name.destination < 0)
    return EntryLane(entry.group)


def is_complete(dump: FlightDump) -> bool:
    """Return whether the dump contains all calls since the start of the recorder."""
    entries = dump.entries
    if not entries:
        return not dump.statuses
    return entries[0].record_id == 0 and entries[-1].record_id == len(entries) - 1


def missing_from(dump: FlightDump) -> int:
    """Return the number of counted calls that the dump lacks: overwritten, omitted as ended, or damaged."""
    if not dump.entries:
        return max((status.enqueued for status in dump.statuses.values()), default=0)
    return max(dump.entries[-1].record_id + 1 - len(dump.entries), 0)


def is_pair_of(dump: FlightDump, group: str) -> bool:
    """Return whether a group is known to have two members."""
    recorded = dump.groups.get(group)
    return recorded is not None and len(recorded.ranks) == PAIR


def counts_all_groups_together(dump: FlightDump) -> bool:
    """Return whether sequence numbers equal record ids, as torchcomms writes them. c10d counts per group, from 1."""
    return bool(dump.entries) and all(entry.sequence == entry.record_id and not entry.is_p2p for entry in dump.entries)


def retired_means_ended(dump: FlightDump) -> bool:
    """Return whether a retired call has ended.

    The recorders of gloo and torchcomms mark an end only by retiring the call. NCCL's also retires calls that time out.
    """
    if any(parse_profiling_name(entry.profiling_name).library == GLOO for entry in dump.entries[:1]):
        return True
    return not dump.statuses and all(entry.state is EntryState.SCHEDULED for entry in dump.entries)


def is_open(entry: FlightEntry, retired_is_ended: bool) -> bool:
    """Return whether an operation may still be in flight; see `retired_means_ended`."""
    if entry.completed_ns is not None or entry.state is EntryState.COMPLETED:
        return False
    return not (retired_is_ended and entry.retired)
