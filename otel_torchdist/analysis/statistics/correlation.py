"""Correlates the calls of a group's members: the skew of their arrivals, and differences in the number of calls.

In a job that hangs, look first at the rank that called an operation less often than the others.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from otel_torchdist.analysis.statistics.result import (
    MAX_LISTED,
    CallCount,
    CountDifference,
    GroupCorrelation,
    GroupRef,
    Unfinished,
)
from otel_torchdist.analysis.statistics.tally import percentile, sorted_ns
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.sources.history.call_table import OPEN, RankCalls
from otel_torchdist.sources.history.meetings import Meeting, Member, SharedChannel

_MAX_RANKS_TEXT: Final = 24


def labels_of(ranks: Iterable[Mapping[str, GroupView]]) -> Mapping[str, str]:
    """Return a unique label for each group, by key: its name, with its ranks if several groups have that name.

    Args:
        ranks: The groups of each rank by key, ranks ascending. If members have different names for a group, the first
            member's name is used.
    """
    groups: dict[str, GroupView] = {}
    for of_rank in ranks:
        groups |= {key: view for key, view in of_rank.items() if key not in groups}
    names = Counter(view.label for view in groups.values())
    with_ranks = {key: _with_ranks(view) if names[view.label] > 1 else view.label for key, view in groups.items()}
    duplicates = Counter(with_ranks.values())
    return {key: f"{label} {key}" if duplicates[label] > 1 else label for key, label in with_ranks.items()}


def _with_ranks(view: GroupView) -> str:
    return f"{view.label} ({compress_ranks(view.members, _MAX_RANKS_TEXT)})"


class Correlator:
    """Counts the complete, open, incomplete and mismatched operations of one group."""

    def __init__(self, shared: SharedChannel) -> None:
        """Start without operations."""
        self._shared = shared
        self._first = shared.first
        self._last = 0
        self._counts: Counter[str] = Counter()
        self._unfinished: deque[Unfinished] = deque(maxlen=MAX_LISTED)
        self._skews = array("q")

    def add(self, meeting: Meeting) -> None:
        """Count an operation, given the calls of all members at one position of a channel."""
        shared = meeting.shared
        channel = shared.channel
        ends = (channel.source, channel.destination) if channel.is_point_to_point else None
        self._first = max(self._first, shared.first)
        self._last = max(self._last, meeting.sequence)
        if ends is None and len(meeting.operations) > 1:
            self._counts["mismatched"] += 1
        inside = meeting.inside
        if inside or meeting.missing:
            self._counts["incomplete" if meeting.missing else "open"] += 1
            names = tuple(sorted(meeting.operations))
            self._unfinished.append(Unfinished(meeting.sequence, ends, names, meeting.missing, inside))
            return
        self._counts["complete"] += 1
        arrived = meeting.arrived
        if arrived is not None:
            self._skews.append(max(arrived) - min(arrived))

    def result(self, ranks: Mapping[int, RankCalls], labels: Mapping[str, str]) -> GroupCorrelation:
        """Return the counts; `labels` maps the keys of groups to labels."""
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


def differences(shared: Iterable[SharedChannel], labels: Mapping[str, str]) -> list[CountDifference]:
    """Return the differences in the number of calls. Messages between two ranks are counted over all tags.

    Args:
        shared: The channels.
        labels: Labels of groups, by key.
    """
    differing: list[CountDifference] = []
    pairs: defaultdict[tuple[str, int, int], list[SharedChannel]] = defaultdict(list)
    for shared_channel in shared:
        channel = shared_channel.channel
        if channel.is_point_to_point:
            pairs[channel.group, channel.source, channel.destination].append(shared_channel)
        else:
            differing += _differences_in_collectives(shared_channel, labels[channel.group])
    for (key, source, destination), channels in pairs.items():
        differing += _differences_in_messages(source, destination, channels, labels[key])
    return differing


def _differences_in_collectives(shared: SharedChannel, label: str) -> Iterator[CountDifference]:
    called = {rank: _counts(member, shared.first) for rank, member in shared.members.items()}
    called |= {rank: {} for rank in shared.absent}
    for operation in sorted({name for counts in called.values() for name in counts}):
        counts = [CallCount(rank, operation, *called[rank].get(operation, (0, 0))) for rank in sorted(called)]
        if len({count.calls for count in counts}) > 1:
            yield CountDifference(_group(shared, label), operation, None, shared.first or None, tuple(counts))


def _differences_in_messages(
    source: int, destination: int, channels: list[SharedChannel], label: str
) -> Iterator[CountDifference]:
    sides = {"send": source, "recv": destination}
    totals: dict[str, tuple[int, int]] = dict.fromkeys(sides, (0, 0))
    for shared in channels:
        if len(shared.members) + len(shared.absent) < len(shared.expected):
            return  # a side has no history, or may have lost these calls
        for member in shared.members.values():
            for operation, (calls, still_open) in _counts(member, shared.first).items():
                before = totals.get(operation, (0, 0))
                totals[operation] = before[0] + calls, before[1] + still_open
    counts = [CallCount(rank, operation, *totals[operation]) for operation, rank in sides.items()]
    if counts[0].calls != counts[1].calls:
        counts.sort(key=lambda count: count.rank)
        first = max(shared.first for shared in channels)
        yield CountDifference(_group(channels[0], label), "send", (source, destination), first or None, tuple(counts))


def _group(shared: SharedChannel, label: str) -> GroupRef:
    return GroupRef(shared.channel.group, label, len(shared.group.members))


def _counts(member: Member, first: int) -> dict[str, tuple[int, int]]:
    """Return the number of calls from position `first` on, and of calls in flight among them, by operation."""
    calls = member.calls
    indices = [index for index, at in zip(member.indices, member.sequences, strict=True) if at >= first]
    kinds = Counter(map(calls.kind.__getitem__, indices))
    still_open = Counter(calls.kind[index] for index in indices if calls.ended[index] == OPEN)
    counts: dict[str, tuple[int, int]] = {}
    for kind, number in kinds.items():
        operation = calls.kinds[kind].operation
        before = counts.get(operation, (0, 0))
        counts[operation] = before[0] + number, before[1] + still_open[kind]
    return counts
