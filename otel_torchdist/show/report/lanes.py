"""The calls of some ranks in a window of time, as lanes of bars that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_torchdist.analysis.clocks.alignment import Alignment
from otel_torchdist.analysis.timeline.rank_timeline import lanes_of
from otel_torchdist.judge.verdict.wording.calls import describe_frame
from otel_torchdist.model.activity_kinds import Track, titles_on
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.collectives import family_of
from otel_torchdist.model.operations import ASSUMED
from otel_torchdist.show.report.columns import BarKind, BarLane
from otel_torchdist.sources.history.call_kinds import CallKind
from otel_torchdist.sources.history.call_table import OPEN as STILL_OPEN
from otel_torchdist.sources.history.call_table import RankCalls
from otel_torchdist.sources.history.meetings import SharedChannel, shared_channels

MAX_LANES: Final = 8
"""Upper bound on the lanes of a group on one rank. Further simultaneous operations are left out and counted."""
OPEN: Final = -1
"""Length of a bar that has not ended."""
UNKNOWN: Final = -1
ACTIVITIES: Final = -1
"""Stands in place of a group's index for the lanes of activities."""
_ASSUMED: Final = frozenset(map(int, ASSUMED))

_ACTIVITIES: Final = {
    kind: BarKind(title, kind.name.lower(), "", 0) for kind, title in titles_on(Track.ACTIVITIES).items()
}


class _Bar(NamedTuple):
    start: int
    length: int
    waited: int
    kind: int
    sequence: int
    step: int
    is_loose: bool

    @property
    def end(self) -> int | None:
        return None if self.length == OPEN else self.start + self.length


class AwaitedArrivals:
    """Looks up the time that calls waited for other ranks."""

    def __init__(self, ranks: Mapping[int, RankCalls]) -> None:
        """Create a lookup from the calls of all ranks, by ascending rank."""
        self._channels: dict[Channel, SharedChannel] = {shared.channel: shared for shared in shared_channels(ranks)}
        self._awaited: dict[tuple[Channel, int], dict[int, int]] = {}

    def waited_ns(self, calls: RankCalls, index: int, length_ns: int) -> int:
        """Return the time that a call waited for the last rank that it depends on; -1 if unknown.

        Args:
            calls: The calls of its rank.
            index: Index of the call.
            length_ns: Length of the call; -1 if it is open.
        """
        channel = calls.channels[calls.channel[index]].channel
        awaited_ns = self._awaited_at(channel, calls.sequence[index]).get(calls.rank)
        if awaited_ns is None or length_ns < 0:
            return UNKNOWN
        return min(max(awaited_ns - calls.started[index], 0), length_ns)

    def _awaited_at(self, channel: Channel, sequence: int) -> dict[int, int]:
        """Return the arrival of the last awaited rank, by waiting rank; unknown arrivals are left out."""
        arrivals = self._awaited.get((channel, sequence))
        if arrivals is None:
            arrivals = self._awaited[channel, sequence] = self._look_up(channel, sequence)
        return arrivals

    def _look_up(self, channel: Channel, sequence: int) -> dict[int, int]:
        shared = self._channels.get(channel)
        if shared is None or sequence < shared.first:
            return {}
        meeting = shared.meeting_at(sequence)
        awaited = zip(meeting.members, meeting.awaited(), strict=True)
        return {member.calls.rank: until_ns for member, until_ns in awaited if until_ns is not None}


@dataclass(slots=True)
class Lanes:
    """Collects the lanes of a window, one rank after the other.

    Attributes:
        from_ns: Start of the window, since the epoch.
        until_ns: End of the window.
        alignment: Clock offsets between ranks.
        waits: Looks up the time that a call waited for other ranks.
        max_bars: Upper bound on the bars of one rank.
        lanes: The lanes so far.
        kinds: Indices of the kinds of bars.
        groups: Indices of the names of groups.
        left_out: Number of bars left out.
    """

    from_ns: int
    until_ns: int
    alignment: Alignment
    waits: AwaitedArrivals
    max_bars: int
    lanes: list[BarLane] = field(default_factory=list[BarLane])
    kinds: dict[BarKind, int] = field(default_factory=dict[BarKind, int])
    groups: dict[str, int] = field(default_factory=dict[str, int])
    left_out: int = 0

    def add(self, calls: RankCalls, names: Mapping[str, str]) -> None:
        """Add the calls of a rank.

        Args:
            calls: The calls.
            names: Names of groups, by key.
        """
        from_ns, until_ns = (
            self.alignment.on_clock_of(calls.rank, time_ns) for time_ns in (self.from_ns, self.until_ns)
        )
        by_group: dict[int, list[_Bar]] = {}
        inside = [
            index
            for index, (started_ns, ended_ns) in enumerate(zip(calls.started, calls.ended, strict=True))
            if started_ns <= until_ns and (ended_ns == STILL_OPEN or ended_ns >= from_ns)
        ]
        self.left_out += max(0, len(inside) - self.max_bars)
        kind_and_group: dict[int, tuple[int, int]] = {}
        for index in inside[-self.max_bars :]:
            number = calls.kind[index]
            if number not in kind_and_group:
                kind_and_group[number] = self._kind(calls.kinds[number]), self._group(calls.kinds[number], names)
            kind, group = kind_and_group[number]
            by_group.setdefault(group, []).append(self._bar(calls, index, kind))
        by_group[ACTIVITIES] = list(self._activities(calls, from_ns, until_ns))
        for group, bars in sorted(by_group.items(), key=lambda entry: (entry[0] == ACTIVITIES, entry[0])):
            self._stack(calls.rank, group, bars)

    def _kind(self, call: CallKind) -> int:
        site = describe_frame(call.site) if call.site is not None else ""
        kind = BarKind(call.operation, family_of(call.operation), site, call.message_bytes)
        return self.kinds.setdefault(kind, len(self.kinds))

    def _group(self, call: CallKind, names: Mapping[str, str]) -> int:
        name = names.get(call.group_key, "unknown group" if call.group is None else call.group.label)
        return self.groups.setdefault(name, len(self.groups))

    def _bar(self, calls: RankCalls, index: int, kind: int) -> _Bar:
        started_ns, ended_ns = calls.started[index], calls.ended[index]
        end_ns = None if ended_ns == STILL_OPEN else ended_ns
        if calls.how[index] in _ASSUMED:
            end_ns = calls.returned[index] if calls.returned[index] != UNKNOWN else started_ns
        start, length = self._placed(calls.rank, started_ns, end_ns)
        return _Bar(
            start=start,
            length=length,
            waited=self.waits.waited_ns(calls, index, length),
            kind=kind,
            sequence=calls.sequence[index],
            step=calls.step[index],
            is_loose=end_ns is not None and not calls.is_timed(index),
        )

    def _activities(self, calls: RankCalls, from_ns: int, until_ns: int) -> Iterator[_Bar]:
        for activity in calls.activities:
            begin_ns, end_ns = activity.entered_ns, activity.completed_ns
            if begin_ns > until_ns or (end_ns is not None and end_ns < from_ns):
                continue
            title = _ACTIVITIES.get(activity.kind)
            if title is None:
                continue
            kind = self.kinds.setdefault(title, len(self.kinds))
            yield _Bar(*self._placed(calls.rank, begin_ns, end_ns), UNKNOWN, kind, 0, activity.step, False)

    def _placed(self, rank: int, begin_ns: int, end_ns: int | None) -> tuple[int, int]:
        """Return the start of a bar relative to the window, and its length."""
        start = self.alignment.epoch_ns(rank, begin_ns) - self.from_ns
        if end_ns is None:
            return start, OPEN
        return start, max(self.alignment.epoch_ns(rank, end_ns) - self.from_ns - start, 0)

    def _stack(self, rank: int, group: int, bars: Iterable[_Bar]) -> None:
        """Put bars into as few lanes as possible."""
        ordered = sorted(bars)
        lanes = lanes_of(range(len(ordered)), [bar.start for bar in ordered], [bar.end for bar in ordered])
        self.left_out += sum(map(len, lanes[MAX_LANES:]))
        self.lanes.extend(_lane(rank, group, [ordered[index] for index in lane]) for lane in lanes[:MAX_LANES])


def _lane(rank: int, group: int, bars: list[_Bar]) -> BarLane:
    starts = [bar.start for bar in bars]
    return BarLane(
        rank=rank,
        group=group,
        kind=tuple(bar.kind for bar in bars),
        begin=tuple(start - before for start, before in zip(starts, [0, *starts], strict=False)),
        length=tuple(bar.length for bar in bars),
        waited=tuple(bar.waited for bar in bars),
        sequence=tuple(bar.sequence for bar in bars),
        step=tuple(bar.step for bar in bars),
        loose=tuple(index for index, bar in enumerate(bars) if bar.is_loose),
    )
