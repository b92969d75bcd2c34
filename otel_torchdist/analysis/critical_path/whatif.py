"""Replays recorded calls with changed durations, to compute how long steps would take.

Except for the changes, a replay keeps each call's predecessor, each transfer's duration and each rank's computing time
between calls. So a removed delay shortens a step only until the next longest delay determines its duration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from otel_torchdist.analysis.critical_path.timelines import PathTimeline
from otel_torchdist.analysis.critical_path.walk import CallIndex, OrderedArrivals, Walker
from otel_torchdist.model.activity_kinds import TimeKind

Change = Callable[[CallIndex, int], int]
"""Maps a call and its recorded duration to the duration to assume."""


def unchanged(_: CallIndex, duration_ns: int) -> int:
    """Return the recorded duration."""
    return duration_ns


class _LastEvent(NamedTuple):
    """The last event of a rank before a moment: a call, the end of a block, or the start of the replay.

    Attributes:
        call: Index of the thread's last call, if it came after the last block; else -1.
        block: Index of the last block, if no call came after it; else -1. Both are -1 for the start of the replay.
        gap_ns: Time from the event to the moment.
    """

    call: int
    block: int
    gap_ns: int


class _ReplayedBlock(NamedTuple):
    """A block with the durations to replay.

    Attributes:
        previous: The last event before the block.
        needed: For each call of the block: the calls that it needs, and the number that arrived before the block's end.
        last_call: The last call of the block.
        transfer_ns: Time from the last arrival to the end of the block, or to the start of a wait that began later.
        rest_ns: Remaining time of the block after the transfer.
    """

    previous: _LastEvent
    needed: tuple[tuple[OrderedArrivals, int], ...]
    last_call: int
    transfer_ns: int
    rest_ns: int


class Replay:
    """Replays the calls of all ranks from the end of one step to the end of another.

    Attributes:
        calls: All calls between the two ends, in order of arrival.
    """

    def __init__(
        self, timelines: Sequence[PathTimeline], walker: Walker, begins: Sequence[int], ends: Sequence[int]
    ) -> None:
        """Prepare the replay.

        Args:
            timelines: All ranks; they have one clock.
            walker: Finds the releases of blocked ranks.
            begins: When each rank ended the step before the first.
            ends: When each rank ended the last step.
        """
        self._timelines = timelines
        self._begins = begins
        arrivals = [
            (timeline.arrived[call], CallIndex(rank, call))
            for rank, timeline in enumerate(timelines)
            for call in range(len(timeline.arrived))
            if begins[rank] < timeline.arrived[call] <= ends[rank]
        ]
        self.calls = [index for _, index in sorted(arrivals)]
        self._last_events: dict[CallIndex, _LastEvent] = {}
        self._ends = [(rank, end_ns) for rank, end_ns in enumerate(ends)]
        newest: list[dict[int, int]] = [{} for _ in timelines]
        for index in self.calls:
            timeline = timelines[index.rank]
            thread = timeline.thread[index.call]
            self._last_events[index] = self._last_event(
                index.rank, timeline.arrived[index.call], thread, newest[index.rank].get(thread, -1)
            )
            newest[index.rank][thread] = index.call
        self._blocks = [
            [self._replayed_block(walker, rank, number) for number in range(len(timeline.blocks))]
            for rank, timeline in enumerate(timelines)
        ]

    def computing_ns(self, index: CallIndex) -> int:
        """Return the computing time before a call, since the thread's previous call or since the last block."""
        return self._last_events[index].gap_ns

    def spent(self, index: CallIndex) -> Mapping[TimeKind, int]:
        """Return the computing time before a call, by kind of time."""
        timeline = self._timelines[index.rank]
        arrived_ns = timeline.arrived[index.call]
        return timeline.spent.between(arrived_ns - self.computing_ns(index), arrived_ns)

    def saved_ns(self, computing: Change = unchanged, transfer: Change = unchanged) -> int:
        """Return the time that all steps together would save.

        Args:
            computing: Duration to assume for the computing before a call.
            transfer: Duration to assume for the transfer of a call that blocks its rank.
        """
        run = _Run(self._timelines, self._begins, self._last_events, self._blocks, computing, transfer)
        for index in self.calls:
            run.arrive(index)
        events = [self._last_event(rank, end_ns, None, -1) for rank, end_ns in self._ends]
        ends = [run.moment(rank, event) + event.gap_ns for (rank, _), event in zip(self._ends, events, strict=True)]
        return max(end_ns for _, end_ns in self._ends) - max(ends)

    def _last_event(self, rank: int, time_ns: int, thread: int | None, call: int) -> _LastEvent:
        """Return the last event before a moment.

        Args:
            rank: Index of the rank's timeline.
            time_ns: The moment.
            thread: The thread that was active then; None if unknown.
            call: Index of that thread's previous call; -1 if there is none.
        """
        timeline, begin_ns = self._timelines[rank], self._begins[rank]
        block = timeline.block_before(time_ns, thread)
        since_ns = begin_ns
        if block is not None and timeline.blocks[block].release_ns > begin_ns:
            since_ns = timeline.blocks[block].release_ns
        else:
            block = None
        if call >= 0 and timeline.arrived[call] >= since_ns:
            return _LastEvent(call, -1, time_ns - timeline.arrived[call])
        return _LastEvent(-1, -1 if block is None else block, time_ns - since_ns)

    def _replayed_block(self, walker: Walker, rank: int, number: int) -> _ReplayedBlock:
        """Split the `number`-th block of a rank into the times before, during and after the transfer."""
        timeline = self._timelines[rank]
        block = timeline.blocks[number]
        last_call = block.calls[-1]
        before = last_call if timeline.arrived[last_call] <= block.begin_ns else -1
        previous = self._last_event(rank, block.begin_ns, block.thread, before)
        needed = tuple((arrivals, arrivals.until(block.release_ns)) for arrivals in walker.needed(rank, block))
        last_ns = max((arrivals.times[count - 1] for arrivals, count in needed if count), default=None)
        if last_ns is None:
            return _ReplayedBlock(previous, (), last_call, 0, block.release_ns - block.begin_ns)
        if walker.release(rank, block).last is not None:
            return _ReplayedBlock(previous, needed, last_call, block.release_ns - last_ns, 0)
        return _ReplayedBlock(
            previous, needed, last_call, max(0, block.begin_ns - last_ns), block.release_ns - block.begin_ns
        )


class _Run:
    """One replay."""

    def __init__(
        self,
        timelines: Sequence[PathTimeline],
        begins: Sequence[int],
        last_events: dict[CallIndex, _LastEvent],
        blocks: Sequence[Sequence[_ReplayedBlock]],
        computing: Change,
        transfer: Change,
    ) -> None:
        self._timelines = timelines
        self._begins = begins
        self._last_events = last_events
        self._blocks = blocks
        self._computing = computing
        self._transfer = transfer
        self._arrived: dict[CallIndex, int] = {}
        self._released: list[list[int]] = [[] for _ in timelines]
        self._latest: dict[tuple[OrderedArrivals, int], int | None] = {}

    def arrive(self, index: CallIndex) -> None:
        """Replay the arrival at the next call, in recorded order."""
        event = self._last_events[index]
        self._arrived[index] = self.moment(index.rank, event) + self._computing(index, event.gap_ns)

    def moment(self, rank: int, event: _LastEvent) -> int:
        """Return when an event happens in this replay."""
        if event.call >= 0:
            index = CallIndex(rank, event.call)
            return self._arrived.get(index, self._timelines[rank].arrived[event.call])
        return self._begins[rank] if event.block < 0 else self._release(rank, event.block)

    def _release(self, rank: int, number: int) -> int:
        """Return when a block ends. Blocks are replayed in the order of their ends: each may depend on earlier ones."""
        released = self._released[rank]
        for block in self._blocks[rank][len(released) : number + 1]:
            ended_ns = self.moment(rank, block.previous) + block.previous.gap_ns
            last_ns = self._last_needed_ns(block.needed)
            if last_ns is not None:
                ended_ns = max(ended_ns, last_ns + self._transfer(CallIndex(rank, block.last_call), block.transfer_ns))
            released.append(ended_ns + block.rest_ns)
        return released[number]

    def _last_needed_ns(self, needed: Sequence[tuple[OrderedArrivals, int]]) -> int | None:
        """Return when the last needed call arrives, or None if all arrived before the replay starts."""
        last_ns = None
        for arrivals in needed:
            time_ns = self._last_arrival_ns(arrivals)
            if time_ns is not None and (last_ns is None or time_ns > last_ns):
                last_ns = time_ns
        return last_ns

    def _last_arrival_ns(self, needed: tuple[OrderedArrivals, int]) -> int | None:
        """Return when the last of the first `count` calls arrives, or None if all arrived before the replay starts."""
        if needed not in self._latest:
            arrivals, count = needed
            times = (self._arrived.get(index) for index in arrivals.indices[:count])
            self._latest[needed] = max((time_ns for time_ns in times if time_ns is not None), default=None)
        return self._latest[needed]
