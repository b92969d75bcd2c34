"""The timeline of one rank: when it arrived at calls, and when calls blocked it."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from otel_torchdist.analysis.clocks.alignment import clock_of
from otel_torchdist.model.collectives import family_of
from otel_torchdist.model.history import TimeSpent
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.sources.history.call_table import RankCalls

_MAX_SKIPPED: Final = 16
"""Upper bound on the blocks of other threads that a search skips."""
_MIN_STEPS: Final = 3


class Label(NamedTuple):
    """The operation, group and call site that identify the calls of one line in one group.

    Attributes:
        operation: `all_reduce`, `send`, …
        group: The group's key.
        site: The call site; None if unknown.
    """

    operation: str
    group: str
    site: CallSiteName | None


class Block(NamedTuple):
    """An interval in which calls blocked a rank.

    Attributes:
        begin_ns: When the rank began to wait.
        release_ns: When the rank continued.
        calls: Indices, in the columns, of all calls that the rank waited for.
        thread: The thread that waited; -1 for a device.
    """

    begin_ns: int
    release_ns: int
    calls: tuple[int, ...]
    thread: int


class PathTimeline:
    """The newest whole steps of one rank. Times are on the rank's clock until `shift` moves them.

    Attributes:
        rank: Global rank.
        host: Host name, or ''.
        clock: Name of the clock; a name unique to the rank if the clock is unknown.
        marks: When each step ended, by number, ascending.
        labels: The distinct labels of calls.
        channels: The distinct channels of calls.
        groups: The groups of the rank, by key.
        arrived: When the rank arrived at each call, ascending.
        label: Index of each call's label.
        channel: Index of each call's channel.
        sequence: Position of each call in its channel.
        thread: The thread of each call; -1 for a device.
        root: Global rank of each call's root or peer; -1 if there is none.
        step: The step of each call.
        blocks: Intervals in which calls blocked the rank, by ascending end.
        spent: The training thread's time, by kind.
    """

    def __init__(self, calls: RankCalls, most_calls: int) -> None:
        """Keep the newest steps of a rank.

        Args:
            calls: All calls of the rank.
            most_calls: Upper bound on the calls to keep. At least three steps are kept.
        """
        self.rank: Final = calls.rank
        self.host: Final = calls.host
        self.clock: Final = clock_of(calls)
        self.marks = {mark.step: mark.ended_ns for mark in calls.steps}
        self.groups: Final = calls.groups
        self.channels: Final = calls.channels
        labels: dict[Label, int] = {}
        label_of = [
            labels.setdefault(Label(family_of(kind.operation), kind.group_key, kind.site), len(labels))
            for kind in calls.kinds
        ]
        self.labels: Final = list(labels)
        kept = calls.only(sorted(_newest(_comparable(calls), calls.step, most_calls), key=calls.started.__getitem__))
        self.arrived: Final = kept.started
        self.channel: Final = kept.channel
        self.sequence: Final = kept.sequence
        self.step: Final = kept.step
        self.label: Final = array("i", map(label_of.__getitem__, kept.kind))
        self.thread: Final = array("q", map([kind.ordering_thread for kind in kept.kinds].__getitem__, kept.kind))
        self.root: Final = array("i", map([kind.peer for kind in kept.kinds].__getitem__, kept.kind))
        self._arrivals: dict[int, array[int]] = {}
        for thread, arrived_ns in zip(self.thread, self.arrived, strict=True):
            self._arrivals.setdefault(thread, array("q")).append(arrived_ns)
        self.blocks = sorted(
            self._blocks(kept, calls.optimizer_starts()), key=lambda block: (block.release_ns, block.begin_ns)
        )
        self._releases = array("q", [block.release_ns for block in self.blocks])
        self.spent: Final = TimeSpent(calls.activities)

    def _blocks(self, calls: RankCalls, optimizer_starts: Sequence[int]) -> Iterator[Block]:
        """Yield the blocks, recorded and inferred. `optimizer_starts` are ascending."""
        pending: list[int] = []
        upcoming = iter(optimizer_starts)
        optimizer_ns = next(upcoming, None)
        for index, arrived_ns in enumerate(self.arrived):
            while optimizer_ns is not None and optimizer_ns <= arrived_ns:
                yield from self._block_until_optimizer(calls, pending, optimizer_ns)
                pending, optimizer_ns = [], next(upcoming, None)
            interval = calls.blocked_interval(index)
            if interval is not None:
                yield Block(*interval, (index,), self.thread[index])
            elif calls.may_have_unrecorded_wait(index):
                pending.append(index)
        if optimizer_ns is not None:
            yield from self._block_until_optimizer(calls, pending, optimizer_ns)

    def _block_until_optimizer(self, calls: RankCalls, pending: Sequence[int], optimizer_ns: int) -> Iterator[Block]:
        """Yield the wait for all pending calls until an optimizer step, unless the thread made other calls meanwhile.

        DDP waits for its gradients in C++ and leaves no record. The optimizer steps once all gradients are reduced.
        """
        if not pending or calls.returned[pending[-1]] > optimizer_ns:
            return
        last, thread = pending[-1], self.thread[pending[-1]]
        later = range(last + 1, len(self.arrived))
        before_optimizer = itertools.takewhile(lambda index: self.arrived[index] < optimizer_ns, later)
        if any(self.thread[index] == thread for index in before_optimizer):
            return
        yield Block(calls.returned[last], optimizer_ns, tuple(pending), thread)

    def shift(self, offset: Callable[[int], int]) -> None:
        """Move all times to another clock.

        Args:
            offset: Returns the nanoseconds to add to a time.
        """
        self.spent.shift(offset)
        for times in (self.arrived, self._releases, *self._arrivals.values()):
            for index, time_ns in enumerate(times):
                times[index] = time_ns + offset(time_ns)
        self.marks = {step: time_ns + offset(time_ns) for step, time_ns in self.marks.items()}
        self.blocks = [
            block._replace(begin_ns=block.begin_ns + offset(block.begin_ns), release_ns=release_ns)
            for block, release_ns in zip(self.blocks, self._releases, strict=True)
        ]

    def block_before(self, time_ns: int, thread: int | None = None, below: int | None = None) -> int | None:
        """Return the last block that delayed the rank before a moment.

        Args:
            time_ns: The moment.
            thread: The thread that was active then; None if unknown. Blocks of other threads are skipped if this thread
                was active during them: a checkpoint in the background does not delay training.
            below: Search only blocks before this index.

        Returns:
            The block's index in `blocks`; None if nothing delayed the rank.
        """
        last = bisect_right(self._releases, time_ns, hi=below) - 1
        for index in range(last, max(-1, last - _MAX_SKIPPED), -1):
            block = self.blocks[index]
            if thread is None or block.thread == thread or not self._was_active(thread, block):
                return index
        return None

    def _was_active(self, thread: int, block: Block) -> bool:
        times = self._arrivals.get(thread)
        if times is None:
            return False
        return bisect_left(times, block.release_ns) > bisect_right(times, block.begin_ns)


def _comparable(calls: RankCalls) -> list[int]:
    """Return the indices of operations with a known arrival."""
    are_operations = [kind.record_kind is RecordKind.OPERATION for kind in calls.kinds]
    return [index for index, kind in enumerate(calls.kind) if are_operations[kind] and calls.has_arrived(index)]


def _newest(indices: Sequence[int], step_of: Sequence[int], most: int) -> Sequence[int]:
    """Return the indices of the newest calls, in whole steps."""
    if len(indices) <= most:
        return indices
    steps = sorted({step_of[index] for index in indices})
    first = max(min(step_of[indices[-most]] + 1, steps[max(0, len(steps) - _MIN_STEPS)]), steps[0])
    return [index for index in indices if step_of[index] >= first]
