"""What one rank did over time: when it arrived at calls, and when it was held up by them."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_torchdist.clocks.alignment import clock_of
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.collectives import family_of
from otel_torchdist.model.history import RankHistory, TimeSpent
from otel_torchdist.model.kinds import ActivityKind, RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.operations import Operation, arrival_ns, hold_of, is_awaited_unseen, is_on_device

_DEVICE_THREAD: Final = -1
"""What runs on a device is in the order of its stream, whichever thread has enqueued it."""
_MAX_PASSED_OVER: Final = 16
_LEAST_STEPS: Final = 3


class Label(NamedTuple):
    """What the calls of one line of the program in one group have in common.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: The group's key.
        site: Where it is called; None if that is not known.
    """

    operation: str
    group: str
    site: CallSiteName | None


class Block(NamedTuple):
    """A time in which calls kept a rank from going on.

    Attributes:
        begin_ns: When the rank began to wait for them.
        release_ns: When it went on.
        calls: Places of the calls in the columns, all of which it waited for.
        thread: The thread that waited; -1 for a device.
    """

    begin_ns: int
    release_ns: int
    calls: tuple[int, ...]
    thread: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call, as far as others depend on it, before it is put into columns."""

    record: Operation
    label: Label
    channel: Channel
    arrived_ns: int
    is_comparable: bool


class Timeline:
    """The newest whole steps of one rank. Times are those of its own clock.

    Attributes:
        rank: Global rank.
        host: Host name, or ''.
        clock: Names its clock; ranks without one have a clock of their own.
        marks: When each of its steps ended, by number, ascending.
        labels: The labels of its calls.
        channels: The channels of its calls.
        groups: Its groups, by key.
        arrived: When it arrived at each call, ascending.
        label: Index of the label of each.
        channel: Index of the channel of each; -1 if its position cannot be compared with that of other ranks.
        sequence: Position of each in its channel.
        thread: The thread that called.
        root: Global rank of its root or peer; -1 if there is none.
        step: The step of each.
        blocks: When calls held it up, by ascending end.
        spent: What its thread that trains was busy with.
    """

    def __init__(self, history: RankHistory, most_calls: int) -> None:
        """Take the newest steps of a history.

        Args:
            history: The history.
            most_calls: Keep as many steps as have no more calls than this, but at least three.
        """
        self.rank = history.rank
        self.host = history.host
        self.clock = clock_of(history)
        self.marks = {mark.step: mark.ended_ns for mark in history.steps}
        self.labels: list[Label] = []
        self.channels: list[Channel] = []
        self.arrived = array("q")
        self.label = array("i")
        self.channel = array("i")
        self.sequence = array("q")
        self.thread = array("q")
        self.root = array("i")
        self.step = array("q")
        calls = sorted(_newest(list(_calls(history)), most_calls), key=lambda call: call.arrived_ns)
        self.groups = {view.group.key: view.group for view in history.operations if view.group is not None}
        self._fill(calls)
        self._entries = _times_by_thread(calls)
        self.blocks = sorted(_blocks(calls, _joins(history)), key=lambda block: (block.release_ns, block.begin_ns))
        self._releases = array("q", [block.release_ns for block in self.blocks])
        self.spent = TimeSpent(history)

    def _fill(self, calls: Sequence[Call]) -> None:
        labels: dict[Label, int] = {}
        channels: dict[Channel, int] = {}
        for call in calls:
            self.arrived.append(call.arrived_ns)
            self.label.append(labels.setdefault(call.label, len(labels)))
            self.channel.append(channels.setdefault(call.channel, len(channels)) if call.is_comparable else -1)
            self.sequence.append(call.record.sequence)
            self.thread.append(_thread_of(call.record))
            self.root.append(call.record.peer)
            self.step.append(call.record.step)
        self.labels, self.channels = list(labels), list(channels)

    def shift(self, offset: Callable[[int], int]) -> None:
        """Move all times to another clock.

        Args:
            offset: What to add to a time.
        """
        self.spent.shift(offset)
        for times in (self.arrived, self._releases, *self._entries.values()):
            for place, time_ns in enumerate(times):
                times[place] = time_ns + offset(time_ns)
        self.marks = {step: time_ns + offset(time_ns) for step, time_ns in self.marks.items()}
        self.blocks = [
            block._replace(begin_ns=block.begin_ns + offset(block.begin_ns), release_ns=release_ns)
            for block, release_ns in zip(self.blocks, self._releases, strict=True)
        ]

    def block_before(self, time_ns: int, thread: int | None = None, below: int | None = None) -> int | None:
        """The block after which the rank went on to what it did at a moment.

        Args:
            time_ns: The moment.
            thread: The thread that did it; None if that is not known. What held up another thread does not count if
                this one was seen to be active meanwhile: a checkpoint in the background keeps no training waiting.
            below: Only blocks before this place count.

        Returns:
            Its place in `blocks`; None if nothing held it up before.
        """
        last = bisect_right(self._releases, time_ns, hi=below) - 1
        for place in range(last, max(-1, last - _MAX_PASSED_OVER), -1):
            block = self.blocks[place]
            if thread is None or block.thread == thread or not self._was_active(thread, block):
                return place
        return None

    def _was_active(self, thread: int, block: Block) -> bool:
        times = self._entries.get(thread)
        if times is None:
            return False
        return bisect_left(times, block.release_ns) > bisect_right(times, block.begin_ns)


def _calls(history: RankHistory) -> Iterator[Call]:
    """The calls whose arrival is known, with labels and channels that are the same objects where they are equal."""
    labels: dict[tuple[int, int, str], Label] = {}
    for view in history.operations:
        record = view.record
        arrived_ns = arrival_ns(record)
        if record.kind is not RecordKind.OPERATION or arrived_ns is None:
            continue
        key = (id(view.group), id(view.call_site), view.name)
        label = labels.get(key)
        if label is None:
            group = "" if view.group is None else view.group.key
            label = labels[key] = Label(family_of(view.name), group, view.call_site)
        is_comparable = view.group is not None and view.group.name.aligned
        yield Call(record, label, view.operation_id.channel, arrived_ns, is_comparable)


def _newest(calls: list[Call], most: int) -> list[Call]:
    """The calls of the newest steps, whole steps each."""
    if len(calls) <= most:
        return calls
    steps = sorted({call.record.step for call in calls})
    first = max(min(calls[-most].record.step + 1, steps[max(0, len(steps) - _LEAST_STEPS)]), steps[0])
    return [call for call in calls if call.record.step >= first]


def _thread_of(record: Operation) -> int:
    return _DEVICE_THREAD if is_on_device(record) else record.thread


def _times_by_thread(calls: Sequence[Call]) -> dict[int, array[int]]:
    """When each thread was seen to be active, ascending."""
    found: dict[int, array[int]] = {}
    for call in calls:
        found.setdefault(_thread_of(call.record), array("q")).append(call.arrived_ns)
    return found


def _joins(history: RankHistory) -> list[int]:
    """When all gradients had been reduced: an optimizer takes its step then. Ascending."""
    kind = ActivityKind.OPTIMIZER_STEP
    return sorted(activity.entered_ns for activity in history.activities if activity.kind is kind)


def _blocks(calls: Sequence[Call], joins: Sequence[int]) -> Iterator[Block]:
    pending: list[int] = []
    upcoming = iter(joins)
    join_ns = next(upcoming, None)
    for place, call in enumerate(calls):
        while join_ns is not None and join_ns <= call.arrived_ns:
            yield from _joined(calls, pending, join_ns)
            pending, join_ns = [], next(upcoming, None)
        held = hold_of(call.record)
        if held is not None:
            yield Block(*held, (place,), _thread_of(call.record))
        elif is_awaited_unseen(call.record):
            pending.append(place)
    if join_ns is not None:
        yield from _joined(calls, pending, join_ns)


def _joined(calls: Sequence[Call], pending: Sequence[int], join_ns: int) -> Iterator[Block]:
    """The wait for all pending calls before an optimizer's step, if nothing else was called after them."""
    if not pending:
        return
    record = calls[pending[-1]].record
    begin_ns = record.returned_ns
    if begin_ns is None or begin_ns > join_ns:
        return
    thread = _thread_of(record)
    later = itertools.islice(calls, pending[-1] + 1, None)
    if any(_thread_of(call.record) == thread for call in itertools.takewhile(lambda c: c.arrived_ns < join_ns, later)):
        return
    yield Block(begin_ns, join_ns, tuple(pending), thread)
