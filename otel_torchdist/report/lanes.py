"""The calls of some ranks in a window of time, as lanes of bars that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from otel_torchdist.clocks.alignment import Alignment
from otel_torchdist.model.activity_kinds import Track, titles_on
from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.collectives import family_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.operations import ASSUMED, Operation
from otel_torchdist.report.arrivals import Arrivals
from otel_torchdist.report.model.windows import BarKind, Lane
from otel_torchdist.timeline.lanes import lanes_of
from otel_torchdist.verdict.wording.calls import describe_frame

MOST_LANES: Final = 8
"""Lanes of one group of one rank; more operations than that at once are left out, and counted."""
OPEN: Final = -1
UNKNOWN: Final = -1
ACTIVITIES: Final = -1


_ACTIVITIES: Final = {
    kind: BarKind(title, kind.name.lower(), "", 0) for kind, title in titles_on(Track.ACTIVITIES).items()
}


class _Bar(NamedTuple):
    begin: int
    length: int
    waited: int
    kind: int
    sequence: int
    step: int
    is_loose: bool

    @property
    def end(self) -> int | None:
        return None if self.length == OPEN else self.begin + self.length


@dataclass(slots=True)
class Lanes:
    """Collects lanes, one history after the other.

    Attributes:
        from_ns: When the window begins, since the epoch.
        until_ns: When it ends.
        alignment: How times of ranks are compared.
        arrivals: Who waited for whom.
        most: Bars of one rank.
        lanes: The lanes so far.
        kinds: What bars are, by their index.
        groups: Names of groups, by their index.
        left_out: Bars that did not fit.
    """

    from_ns: int
    until_ns: int
    alignment: Alignment
    arrivals: Arrivals
    most: int
    lanes: list[Lane] = field(default_factory=list[Lane])
    kinds: dict[BarKind, int] = field(default_factory=dict[BarKind, int])
    groups: dict[str, int] = field(default_factory=dict[str, int])
    left_out: int = 0

    def add(self, history: RankHistory, names: Mapping[str, str]) -> None:
        """Take the calls of a rank.

        Args:
            history: Its history.
            names: What groups are called, by their keys.
        """
        from_ns, until_ns = (self.alignment.on_clock_of(history.rank, at) for at in (self.from_ns, self.until_ns))
        by_group: dict[int, list[_Bar]] = {}
        inside = [view for view in history.operations if _is_inside(view.record, from_ns, until_ns)]
        self.left_out += max(0, len(inside) - self.most)
        known: dict[tuple[object, ...], int] = {}
        for view in inside[-self.most :]:
            key = (id(view.call_site), view.name, view.record.message_bytes)
            if key not in known:
                known[key] = self._kind(view)
            group = self._group(view, names)
            by_group.setdefault(group, []).append(self._bar(history.rank, view, known[key]))
        by_group[ACTIVITIES] = list(self._activities(history, from_ns, until_ns))
        for group, bars in sorted(by_group.items(), key=lambda one: (one[0] == ACTIVITIES, one[0])):
            self._stack(history.rank, group, bars)

    def _kind(self, view: OperationView) -> int:
        site = describe_frame(view.call_site) if view.call_site is not None else ""
        kind = BarKind(view.name, family_of(view.name), site, view.record.message_bytes)
        return self.kinds.setdefault(kind, len(self.kinds))

    def _group(self, view: OperationView, names: Mapping[str, str]) -> int:
        key = view.group.key if view.group is not None else ""
        name = names.get(key, "unknown group" if view.group is None else view.group.label)
        return self.groups.setdefault(name, len(self.groups))

    def _bar(self, rank: int, view: OperationView, kind: int) -> _Bar:
        record = view.record
        begin_ns, end_ns = record.arrived_ns, record.completed_ns
        if record.how in ASSUMED:
            end_ns = record.returned_ns if record.returned_ns is not None else begin_ns
        begin, length = self._placed(rank, begin_ns, end_ns)
        waited = self.arrivals.waited_ns(rank, view, length)
        return _Bar(
            begin=begin,
            length=length,
            waited=waited,
            kind=kind,
            sequence=record.sequence,
            step=record.step,
            is_loose=end_ns is not None and not record.is_timed,
        )

    def _activities(self, history: RankHistory, from_ns: int, until_ns: int) -> Iterator[_Bar]:
        for activity in history.activities:
            begin_ns, end_ns = activity.entered_ns, activity.completed_ns
            if begin_ns > until_ns or (end_ns is not None and end_ns < from_ns):
                continue
            title = _ACTIVITIES.get(activity.kind)
            if title is None:
                continue
            kind = self.kinds.setdefault(title, len(self.kinds))
            yield _Bar(*self._placed(history.rank, begin_ns, end_ns), UNKNOWN, kind, 0, activity.step, False)

    def _placed(self, rank: int, begin_ns: int, end_ns: int | None) -> tuple[int, int]:
        """Begin of a bar since that of the window, and its length."""
        begin = self.alignment.epoch_ns(rank, begin_ns) - self.from_ns
        if end_ns is None:
            return begin, OPEN
        return begin, max(self.alignment.epoch_ns(rank, end_ns) - self.from_ns - begin, 0)

    def _stack(self, rank: int, group: int, bars: Iterable[_Bar]) -> None:
        """Put bars into as few lanes as they need."""
        ordered = sorted(bars)
        lanes = lanes_of(range(len(ordered)), [bar.begin for bar in ordered], [bar.end for bar in ordered])
        self.left_out += sum(map(len, lanes[MOST_LANES:]))
        self.lanes.extend(_lane(rank, group, [ordered[place] for place in lane]) for lane in lanes[:MOST_LANES])


def _is_inside(record: Operation, from_ns: int, until_ns: int) -> bool:
    return record.arrived_ns <= until_ns and (record.completed_ns is None or record.completed_ns >= from_ns)


def _lane(rank: int, group: int, bars: list[_Bar]) -> Lane:
    begins = [bar.begin for bar in bars]
    return Lane(
        rank=rank,
        group=group,
        kind=tuple(bar.kind for bar in bars),
        begin=tuple(begin - before for begin, before in zip(begins, [0, *begins], strict=False)),
        length=tuple(bar.length for bar in bars),
        waited=tuple(bar.waited for bar in bars),
        sequence=tuple(bar.sequence for bar in bars),
        step=tuple(bar.step for bar in bars),
        loose=tuple(place for place, bar in enumerate(bars) if bar.is_loose),
    )
