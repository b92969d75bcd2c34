"""Long waits for one rank that have ended since: the stalls of a run that went on, or was ended later."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.report.model import Incident
from otel_torchdist.report.steps import RankSteps
from otel_torchdist.statistics.calls import UNKNOWN
from otel_torchdist.statistics.meetings import Meeting, Member, SharedChannel
from otel_torchdist.statistics.splitting import awaited_arrivals
from otel_torchdist.statistics.waiting import waiting_in
from otel_torchdist.verdict.wording.sentence import describe_frame, describe_operation
from otel_torchdist.world.model import OperationId

MOST: Final = 50


@dataclass(frozen=True, slots=True)
class LongWait:
    """An operation at which ranks waited for one rank.

    Attributes:
        shared: Its channel.
        sequence: Its position there.
        late: The rank that came last, with its calls.
        place: Place of its call.
        waited: How many ranks waited for it.
        from_ns: When the first of them arrived.
        until_ns: When the late one arrived.
    """

    shared: SharedChannel
    sequence: int
    late: Member
    place: int
    waited: int
    from_ns: int
    until_ns: int

    @property
    def wait_ns(self) -> int:
        """How long the first of them waited."""
        return self.until_ns - self.from_ns


class LongWaits:
    """Looks for them in meetings.

    Attributes:
        more: How many there were besides those that are kept.
    """

    def __init__(self, threshold_ns: int) -> None:
        """Keep waits that lasted at least as long as this."""
        self._threshold_ns = threshold_ns
        self._longest: list[tuple[int, int, LongWait]] = []
        self._seen = 0

    def add(self, shared: SharedChannel, meeting: Meeting) -> None:
        """Look at a meeting: all must have come, by one clock."""
        if not shared.has_one_clock or meeting.missing or len(meeting.calls) < 2:
            return
        arrived = [member.calls.arrived[place] for member, place in meeting.calls]
        if max(arrived) - min(arrived) < self._threshold_ns or UNKNOWN in arrived:
            return
        kinds = {member.kind(place).operation for member, place in meeting.calls}
        waiting = {waiting_in(kind) for kind in kinds}
        if len(waiting) != 1:
            return
        awaited = awaited_arrivals(meeting, waiting.pop(), arrived)
        waits = [
            (until_ns, from_ns)
            for from_ns, until_ns in zip(arrived, awaited, strict=True)
            if until_ns is not None and until_ns - from_ns >= self._threshold_ns
        ]
        if waits:
            self._keep(shared, meeting, arrived, waits)

    def _keep(self, shared: SharedChannel, meeting: Meeting, arrived: list[int], waits: list[tuple[int, int]]) -> None:
        until_ns = max(until for until, _ in waits)
        member, place = meeting.calls[arrived.index(until_ns)]
        first_ns = min(from_ns for _, from_ns in waits)
        found = LongWait(shared, meeting.sequence, member, place, len(waits), first_ns, until_ns)
        self._seen += 1
        heapq.heappush(self._longest, (found.wait_ns, self._seen, found))
        if len(self._longest) > MOST:
            heapq.heappop(self._longest)

    @property
    def more(self) -> int:
        """How many there were besides those that are kept."""
        return self._seen - len(self._longest)

    def longest(self) -> list[LongWait]:
        """The longest, in descending order."""
        return [wait for _, _, wait in sorted(self._longest, key=lambda one: (-one[0], one[1]))]


def incident_of(wait: LongWait, steps: Mapping[int, RankSteps], shown: Callable[[int], str]) -> Incident:
    """Describe a long wait.

    Args:
        wait: The wait.
        steps: The steps of each rank.
        shown: Formats nanoseconds since the epoch.
    """
    rank, kind = wait.late.rank, wait.late.kind(wait.place)
    operation_id = OperationId(wait.shared.channel, wait.sequence)
    return Incident(
        rank=rank.rank,
        host=rank.host,
        waited=wait.waited,
        wait_ns=wait.wait_ns,
        operation=describe_operation(kind.operation, wait.shared.group, operation_id),
        site=describe_frame(kind.site) if kind.site is not None else "",
        step=step_at(steps.get(rank.rank), wait.until_ns),
        began=shown(wait.from_ns + rank.wall_offset_ns),
    )


def step_at(steps: RankSteps | None, time_ns: int) -> int | None:
    """The step of a rank at a time of its clock; None if that is not known."""
    if steps is None:
        return None
    place = bisect_left(steps.ended, time_ns)
    if place == len(steps.ended) or time_ns < steps.ended[place] - steps.lengths[place]:
        return None
    return steps.steps[place]
