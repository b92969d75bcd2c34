"""Finds where members of a group have called an operation a different number of times.

That is the first thing to look at in a job that hangs: a rank that has called less is missing somewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from otel_torchdist.statistics.calls import OPEN
from otel_torchdist.statistics.meetings import Member, SharedChannel
from otel_torchdist.statistics.model import CallCount, CountDifference, GroupRef


def differences(shared: Iterable[SharedChannel], labels: Mapping[str, str]) -> list[CountDifference]:
    """The differences in all channels; what one rank sends another counts over all tags.

    Args:
        shared: The channels.
        labels: How groups are called, by their keys.
    """
    found: list[CountDifference] = []
    pairs: defaultdict[tuple[str, int, int], list[SharedChannel]] = defaultdict(list)
    for one in shared:
        if one.channel.is_point_to_point:
            pairs[one.channel.group, one.channel.source, one.channel.destination].append(one)
        else:
            found += _in_collectives(one, labels[one.channel.group])
    for (key, source, destination), channels in pairs.items():
        found += _between(source, destination, channels, labels[key])
    return found


def _in_collectives(shared: SharedChannel, label: str) -> Iterator[CountDifference]:
    called = {rank: _counts(member, shared.first) for rank, member in shared.members.items()}
    called |= {rank: {} for rank in shared.absent}
    for operation in sorted({name for counts in called.values() for name in counts}):
        counts = [CallCount(rank, operation, *called[rank].get(operation, (0, 0))) for rank in sorted(called)]
        if len({count.calls for count in counts}) > 1:
            yield CountDifference(_group(shared, label), operation, None, shared.first or None, tuple(counts))


def _between(source: int, destination: int, channels: list[SharedChannel], label: str) -> Iterator[CountDifference]:
    sides = {"send": source, "recv": destination}
    totals: dict[str, tuple[int, int]] = dict.fromkeys(sides, (0, 0))
    for shared in channels:
        if len(shared.members) + len(shared.absent) < len(shared.expected):
            return  # one of them has no history, or may have lost these calls
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
    """By operation, how many calls from sequence `first` on, and how many of them are open."""
    calls = member.calls
    held = [
        (kind, ended)
        for sequence, kind, ended in zip(calls.sequences, calls.kinds, calls.ended, strict=True)
        if sequence >= first
    ]
    kinds = Counter(kind for kind, _ in held)
    still_open = Counter(kind for kind, ended in held if ended == OPEN)
    found: dict[str, tuple[int, int]] = {}
    for kind, number in kinds.items():
        operation = member.rank.kinds[kind].operation
        before = found.get(operation, (0, 0))
        found[operation] = before[0] + number, before[1] + still_open[kind]
    return found
