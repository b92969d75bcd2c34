"""How well the calls of a group's members fit together, and how far apart they arrive."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.statistics.calls import OPEN, UNKNOWN, RankCalls
from otel_torchdist.statistics.meetings import Meeting, SharedChannel
from otel_torchdist.statistics.tally import percentile, sorted_ns

MAX_LISTED: Final = 32


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An operation that not all members have left.

    Attributes:
        sequence: Its position in the group.
        ends: Sender and receiver; None for a collective.
        operations: What members called there, in alphabetical order.
        missing: Members that have not entered it.
        open: Members that are in it.
    """

    sequence: int
    ends: tuple[int, int] | None
    operations: tuple[str, ...]
    missing: tuple[int, ...]
    open: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupCorrelation:
    """The operations of one group, by sequence.

    Attributes:
        group: The group's key.
        group_name: How the group is called in sentences.
        is_point_to_point: Whether these are its sends and receives, which count by sender, receiver and tag.
        members: How many ranks it has.
        known: How many of them have a history.
        first: The sequence from which on the calls of all of these are known; 0 if none is missing.
        last: The highest sequence; 0 for sends and receives.
        complete: Operations that all of these have entered and left.
        open: Operations that all have entered, and not all have left.
        incomplete: Operations that not all have entered.
        mismatched: Operations at which members called something different.
        unfinished: The newest that are open or incomplete, at most `MAX_LISTED`.
        skewed: For how many complete operations the times of arrival could be compared.
        skew_median_ns: Time between the first arrival and the last; None if no times could be compared.
        skew_p99_ns: The same, for the 99th percentile.
        skew_max_ns: The same, at most.
    """

    group: str
    group_name: str
    is_point_to_point: bool
    members: int
    known: int
    first: int
    last: int
    complete: int
    open: int
    incomplete: int
    mismatched: int
    unfinished: tuple[Unfinished, ...]
    skewed: int
    skew_median_ns: int | None
    skew_p99_ns: int | None
    skew_max_ns: int | None


class Correlator:
    """Adds up the meetings of a group's channels."""

    def __init__(self, shared: SharedChannel) -> None:
        """Start with no meeting of the channel's group."""
        self._shared = shared
        self._first = shared.first
        self._last = 0
        self._counts: Counter[str] = Counter()
        self._unfinished: deque[Unfinished] = deque(maxlen=MAX_LISTED)
        self._skews = array("q")

    def add(self, shared: SharedChannel, meeting: Meeting) -> None:
        """Count a meeting."""
        channel = shared.channel
        ends = (channel.source, channel.destination) if channel.is_point_to_point else None
        self._first = max(self._first, shared.first)
        self._last = max(self._last, meeting.sequence)
        operations = {member.kind(place).operation for member, place in meeting.calls}
        if ends is None and len(operations) > 1:
            self._counts["mismatched"] += 1
        inside = [member.rank.rank for member, place in meeting.calls if member.calls.ended[place] == OPEN]
        if inside or meeting.missing:
            self._counts["incomplete" if meeting.missing else "open"] += 1
            names = tuple(sorted(operations))
            self._unfinished.append(Unfinished(meeting.sequence, ends, names, meeting.missing, tuple(inside)))
            return
        self._counts["complete"] += 1
        if shared.has_one_clock:
            arrived = [member.calls.arrived[place] for member, place in meeting.calls]
            if UNKNOWN not in arrived:
                self._skews.append(max(arrived) - min(arrived))

    def result(self, ranks: Mapping[int, RankCalls], labels: Mapping[str, str]) -> GroupCorrelation:
        """What has been counted; `labels` has what groups are called, by their keys."""
        group, channel = self._shared.group, self._shared.channel
        skews = sorted_ns(self._skews)
        return GroupCorrelation(
            group=group.key,
            group_name=labels[group.key],
            is_point_to_point=channel.is_point_to_point,
            members=len(group.members),
            known=sum(rank in ranks for rank in group.members),
            first=self._first,
            last=0 if channel.is_point_to_point else self._last,
            complete=self._counts["complete"],
            open=self._counts["open"],
            incomplete=self._counts["incomplete"],
            mismatched=self._counts["mismatched"],
            unfinished=tuple(self._unfinished),
            skewed=len(skews),
            skew_median_ns=percentile(skews, 0.5) if skews else None,
            skew_p99_ns=percentile(skews, 0.99) if skews else None,
            skew_max_ns=skews[-1] if skews else None,
        )
