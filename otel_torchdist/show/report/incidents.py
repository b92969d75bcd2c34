"""Long waits for one rank that have ended: past stalls of a run that went on, or was ended later."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.judge.verdict.wording.calls import describe_frame, describe_operation
from otel_torchdist.model.calls import OperationId
from otel_torchdist.show.report.document import PastStall
from otel_torchdist.show.report.figures import RankSteps
from otel_torchdist.sources.history.call_table import RankCalls
from otel_torchdist.sources.history.meetings import Meeting, SharedChannel

MAX_INCIDENTS: Final = 50
"""Upper bound on the incidents in a report."""


@dataclass(frozen=True, slots=True)
class LongWait:
    """An operation in which ranks waited for one rank.

    Attributes:
        shared: Its channel and group.
        sequence: Its position in the channel.
        late: The calls of the rank that came last.
        index: Index of that rank's call among its calls.
        waits: Start of the wait, by waiting rank.
        until_ns: Arrival of the late rank.
    """

    shared: SharedChannel
    sequence: int
    late: RankCalls
    index: int
    waits: dict[int, int]
    until_ns: int

    @property
    def from_ns(self) -> int:
        """Time at which the first rank began to wait."""
        return min(self.waits.values())

    @property
    def wait_ns(self) -> int:
        """Length of the longest wait."""
        return self.until_ns - self.from_ns

    def is_explained_by(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether the late rank was itself waiting for at least half of this wait."""
        common_ns = min(self.until_ns, end_ns) - max(self.from_ns, begin_ns)
        return 2 * common_ns >= self.wait_ns

    def is_about_the_same(self, other: LongWait) -> bool:
        """Return whether both waits are for the same rank, at overlapping times of one clock."""
        mine, theirs = self.late, other.late
        overlaps = self.from_ns < other.until_ns and other.from_ns < self.until_ns
        return mine.rank == theirs.rank and mine.clock == theirs.clock and overlaps


class LongWaits:
    """Collects long waits from meetings."""

    def __init__(self, threshold_ns: int) -> None:
        """Collect waits of at least `threshold_ns`."""
        self._threshold_ns = threshold_ns
        self._waits: list[LongWait] = []

    def add(self, meeting: Meeting) -> None:
        """Add a meeting if all members have arrived and share one clock."""
        arrived = meeting.arrived
        if arrived is None or len(arrived) < 2 or max(arrived) - min(arrived) < self._threshold_ns:
            return
        awaited = meeting.awaited()
        waits = {
            member.calls.rank: from_ns
            for member, from_ns, until_ns in zip(meeting.members, arrived, awaited, strict=True)
            if until_ns is not None and until_ns - from_ns >= self._threshold_ns
        }
        if waits:
            until_ns = max(until_ns for until_ns in awaited if until_ns is not None)
            last = arrived.index(until_ns)
            late, index = meeting.members[last].calls, meeting.indices[last]
            self._waits.append(LongWait(meeting.shared, meeting.sequence, late, index, waits, until_ns))

    def causes(self) -> list[LongWait]:
        """Return the waits for ranks that did not wait themselves, longest first, with all ranks that waited for them.

        A rank that came late because it waited in another operation is not to blame. The blame goes to the rank that it
        waited for.
        """
        causes: list[LongWait] = []
        held_up: dict[int, list[tuple[int, int, LongWait]]] = {}
        for wait in sorted(self._waits, key=lambda wait: wait.until_ns):
            rank = wait.late.rank
            waits_of_late = held_up.get(rank, ())
            cause = next(
                (root for from_ns, until_ns, root in waits_of_late if wait.is_explained_by(from_ns, until_ns)), None
            )
            if cause is None:
                cause = next((root for root in causes if root.is_about_the_same(wait)), None)
            if cause is None:
                cause = dataclasses.replace(wait, waits=dict(wait.waits))
                causes.append(cause)
            for waiter, from_ns in wait.waits.items():
                held_up.setdefault(waiter, []).append((from_ns, wait.until_ns, cause))
                if waiter != cause.late.rank:
                    cause.waits.setdefault(waiter, from_ns)
        return sorted(causes, key=lambda cause: -cause.wait_ns)


def incident_of(wait: LongWait, steps: Mapping[int, RankSteps], format_ns: Callable[[int], str]) -> PastStall:
    """Describe a long wait.

    Args:
        wait: The wait.
        steps: The steps of each rank.
        format_ns: Formats nanoseconds since the epoch as local time.
    """
    rank = wait.late
    kind = rank.kinds[rank.kind[wait.index]]
    operation_id = OperationId(wait.shared.channel, wait.sequence)
    return PastStall(
        rank=rank.rank,
        host=rank.host,
        waited=len(wait.waits),
        wait_ns=wait.wait_ns,
        operation=describe_operation(kind.operation, wait.shared.group, operation_id),
        site=describe_frame(kind.site) if kind.site is not None else "",
        step=step_at(steps.get(rank.rank), wait.until_ns),
        began=format_ns(wait.from_ns + rank.wall_offset_ns),
    )


def step_at(steps: RankSteps | None, time_ns: int) -> int | None:
    """Return the step of a rank at a time of its clock; None if unknown."""
    if steps is None:
        return None
    index = bisect_left(steps.ended, time_ns)
    if index == len(steps.ended) or time_ns < steps.ended[index] - steps.lengths[index]:
        return None
    return steps.steps[index]
