"""How well the calls of a group's members fit together, and how far apart they arrive."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping

from otel_torchdist.statistics.calls import OPEN, UNKNOWN, RankCalls
from otel_torchdist.statistics.meetings import Meeting, SharedChannel
from otel_torchdist.statistics.model import MAX_LISTED, GroupCorrelation, GroupRef, Unfinished
from otel_torchdist.statistics.tally import percentile, sorted_ns


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
            group=GroupRef(group.key, labels[group.key], len(group.members)),
            point_to_point=channel.is_point_to_point,
            known=sum(rank in ranks for rank in group.members),
            first_sequence=self._first,
            last_sequence=None if channel.is_point_to_point else self._last or None,
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
