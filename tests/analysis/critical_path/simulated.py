"""A job in simulated time: records of ranks whose computing and transfers take exactly the times of a test."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from otel_torchdist.model.calls import Channel, GroupView, OperationView
from otel_torchdist.model.history import Activity, RankHistory
from otel_torchdist.model.kinds import ActivityKind, Flag, How, RecordKind
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.operations import StepMark
from tests.support.tapes.made_records import made_operation, made_view

MS: Final = 1_000_000
START_NS: Final = 1_000_000_000_000


def site(line: int) -> CallSiteName:
    """A line of the program."""
    return CallSiteName("train", "/home/ada/train.py", line)


class Job:
    """A job whose ranks advance under the control of a test.

    Attributes:
        now: When each rank is ready for its next call, in true time.
        step: The current step.
    """

    def __init__(self, ranks: int, hosts: Sequence[str] = (), clocks: Mapping[str, Callable[[int], int]] | None = None):
        """Start the job.

        Args:
            ranks: Number of ranks.
            hosts: The host of each rank; empty for one host.
            clocks: Maps true time to the clock's time, by host. Missing hosts show true time.
        """
        self.hosts = list(hosts) or ["node"] * ranks
        self._clocks = clocks or {}
        self.now = [START_NS] * ranks
        self.step = 0
        self._operations: list[list[OperationView]] = [[] for _ in range(ranks)]
        self._marks: list[list[StepMark]] = [[] for _ in range(ranks)]
        self._activities: list[list[Activity]] = [[] for _ in range(ranks)]
        self._counts: Counter[tuple[int, Channel]] = Counter()
        self._launched: dict[int, int] = {}

    def compute(self, rank: int, ms: float) -> None:
        """Let a rank compute."""
        self.now[rank] += int(ms * MS)

    def spend(self, rank: int, kind: ActivityKind, ms: float, thread: int = 1) -> None:
        """Let a rank spend time in an activity. If the activity is on another thread, the rank computes meanwhile."""
        begin_ns = self.now[rank]
        self.compute(rank, ms)
        activities = self._activities[rank]
        begin, end = self._shown(rank, begin_ns), self._shown(rank, self.now[rank])
        activities.append(Activity(len(activities) + 1, kind, begin, self.step, 0, thread, end, How.CALL))

    def collective(self, line: int, members: Sequence[int] = (), *, ms: float = 0.1, **call: Any) -> None:
        """Let members meet in a collective. They leave `ms` after the last arrival."""
        members = members or range(len(self.now))
        waiting, root = call.pop("waiting", "all"), call.get("peer", -1)
        arrived = {rank: self.now[rank] for rank in members}
        for rank in members:
            needed = arrived.values() if waiting == "all" else [arrived[rank], arrived[root]]
            end_ns = max(needed) + int(ms * MS)
            self._record(rank, line, tuple(members), arrived[rank], end_ns, **call)
            self.now[rank] = end_ns

    def launch(self, line: int, members: Sequence[int] = ()) -> None:
        """Let members start an operation without waiting for it, as DDP does."""
        for rank in members or range(len(self.now)):
            group = tuple(members or range(len(self.now)))
            self._record(rank, line, group, self.now[rank], None, flags=int(Flag.ASYNC))
            self._launched[rank] = self.now[rank]

    def join(self, ms: float = 0.1) -> None:
        """Let all ranks wait, without a record, for the launched operations. They end `ms` after the last launch."""
        last_ns = max(self._launched.values())
        self.now = [max(now_ns, last_ns + int(ms * MS)) for now_ns in self.now]

    def message(self, line: int, source: int, destination: int, *, ms: float = 0.1) -> None:
        """Send a message from one rank to another. The sender does not wait."""
        sent_ns, ready_ns = self.now[source], self.now[destination]
        pair = tuple(range(len(self.now)))
        ends_ns = max(sent_ns, ready_ns) + int(ms * MS)
        self._record(source, line, pair, sent_ns, sent_ns + 1_000, "send", peer=destination)
        self._record(destination, line + 1, pair, ready_ns, ends_ns, "recv", peer=source)
        self.now[source], self.now[destination] = sent_ns + 1_000, ends_ns

    def end_step(self) -> None:
        """Let all ranks run the optimizer, which takes no time, and end the step."""
        for rank, now_ns in enumerate(self.now):
            shown = self._shown(rank, now_ns)
            number = len(self._marks[rank]) + 1
            kind = ActivityKind.OPTIMIZER_STEP
            self._activities[rank].append(Activity(number, kind, shown, self.step, 0, 1, shown, How.CALL))
            self._marks[rank].append(StepMark(number, shown, self.step, 0))
        self.step += 1

    def histories(self, without: Sequence[int] = ()) -> list[RankHistory]:
        """Return the records of the ranks."""
        return [
            RankHistory(
                rank=rank,
                world_size=len(self.now),
                host=self.hosts[rank],
                wall_offset_ns=0,
                operations=tuple(operations),
                lost=0,
                clock=self.hosts[rank],
                steps=tuple(self._marks[rank]),
                activities=tuple(self._activities[rank]),
            )
            for rank, operations in enumerate(self._operations)
            if rank not in without
        ]

    def record(self, rank: int, line: int, from_ms: float, to_ms: float, thread: int) -> None:
        """Record a synchronous call of another thread in a separate group, by true time relative to now."""
        begin, end = (self.now[rank] + int(ms * MS) for ms in (from_ms, to_ms))
        self._record(rank, line, (rank,), begin, end, "barrier", thread=thread)

    def _shown(self, rank: int, true_ns: int) -> int:
        clock = self._clocks.get(self.hosts[rank])
        return clock(true_ns) if clock is not None else true_ns

    def _record(
        self,
        rank: int,
        line: int,
        members: tuple[int, ...],
        begin_ns: int,
        end_ns: int | None,
        operation: str = "all_reduce",
        *,
        peer: int = -1,
        flags: int = 0,
        thread: int = 1,
        shape: tuple[int, ...] = (),
    ) -> None:
        name = GroupName("0", "mesh", members, 0, "gloo", True)
        group = GroupView(name.key, name, frozenset(members))
        channel = Channel(RecordKind.OPERATION, group.key)
        if operation in ("send", "recv"):
            ends = (rank, peer) if operation == "send" else (peer, rank)
            channel = Channel(RecordKind.OPERATION, group.key, *ends)
        self._counts[rank, channel] += 1
        sequence = self._counts[rank, channel]
        entered_ns = self._shown(rank, begin_ns)
        record = made_operation(
            len(self._operations[rank]) + 1,
            entered_ns,
            sequence,
            step=self.step,
            message_bytes=4 * math.prod(shape),
            call_site=line,
            peer=peer,
            thread=thread,
            flags=Flag(flags),
            returned_ns=entered_ns + 1_000 if flags & Flag.ASYNC else None,
            completed_ns=None if end_ns is None else self._shown(rank, end_ns),
            how=None if end_ns is None else How.CALL,
        )
        signature = SignatureName(operation, "sum", (shape,), ("float32",), "cpu", 1) if shape else None
        self._operations[rank].append(made_view(record, operation, channel, group, signature, site(line)))
