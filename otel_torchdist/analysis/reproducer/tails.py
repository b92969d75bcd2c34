"""The last calls of each rank in the channels that matter, from shortly before the position at which they hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.mismatch import compare
from otel_torchdist.model.calls import Arrival, Channel, OperationId, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, How

GOOD_CALLS: Final = 2
"""Calls of a channel before the position at which it hangs: they show that the group works."""
_NEVER_NS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Event:
    """A call, or a wait for an earlier call.

    Attributes:
        operation: The call.
        is_wait: Whether this is a later wait for it.
        hangs: Whether the rank does not come out of it.
        is_pending: Whether the rank went on before this call had ended.
    """

    operation: OperationView
    is_wait: bool = False
    hangs: bool = False
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class Tails:
    """The last calls of ranks.

    Attributes:
        of_rank: By rank, its calls and waits in order; what hangs is last.
        first: By channel, the position at which the calls begin, on all ranks.
        several_threads: Whether calls that hang came from several threads of a rank.
    """

    of_rank: Mapping[int, tuple[Event, ...]]
    first: Mapping[Channel, int]
    several_threads: bool


def is_stuck(operation: OperationView) -> bool:
    """Whether a rank is in an operation, or was in it until an exception or a device's error ended the wait."""
    record = operation.record
    if record.completed_ns is not None:
        return record.how is How.FAILED
    return record.is_blocking or (operation.waiting_since_ns is not None and bool(record.flags & Flag.ON_DEVICE))


def tails_of(histories: Sequence[RankHistory], focus: Mapping[Channel, int]) -> Tails:
    """Cut the histories of ranks.

    Args:
        histories: Of the ranks that matter.
        focus: By channel that matters, the position at which it hangs.
    """
    in_channels = {
        history.rank: [one for one in history.operations if one.operation_id.channel in focus] for history in histories
    }
    first = {channel: _first(channel, focus[channel], in_channels) for channel in focus}
    last = {channel: _last(channel, focus[channel], in_channels.values()) for channel in focus}
    of_rank: dict[int, tuple[Event, ...]] = {}
    several_threads = False
    for rank, operations in in_channels.items():
        kept = [
            one
            for one in operations
            if first[one.operation_id.channel] <= one.operation_id.sequence <= last[one.operation_id.channel]
        ]
        of_rank[rank] = _events(kept, focus)
        threads = {one.record.thread for one in kept if is_stuck(one)}
        several_threads = several_threads or len(threads) > 1
    return Tails(of_rank, first, several_threads)


def _first(channel: Channel, focus: int, ranks: Mapping[int, Sequence[OperationView]]) -> int:
    """Where to begin: a few calls before the focus, or later if a rank's calls there are lost or not like the others'.

    Backends tolerate some calls that differ, but not all backends the same ones.
    """
    first = max(1, focus - GOOD_CALLS)
    at: dict[int, dict[int, Arrival]] = {}
    for rank, operations in ranks.items():
        known = [one for one in operations if one.operation_id.channel == channel]
        if known:
            first = max(first, min(known[0].operation_id.sequence, focus))
        for one in known:
            sequence = one.operation_id.sequence
            if first <= sequence < focus:
                at.setdefault(sequence, {})[rank] = Arrival(sequence, one.signature, one.record.peer)
    if channel.is_point_to_point:
        return first
    different = [sequence for sequence, calls in at.items() if compare(calls, OperationId(channel, sequence))]
    return max([first, *(sequence + 1 for sequence in different)])


def _last(channel: Channel, focus: int, ranks: Iterable[Sequence[OperationView]]) -> int:
    """Where to end: at the last call of the channel that a rank is in; what was issued beyond does not matter."""
    stuck = [
        one.operation_id.sequence
        for operations in ranks
        for one in operations
        if one.operation_id.channel == channel and is_stuck(one)
    ]
    return max([focus, *stuck])


def _events(operations: Sequence[OperationView], focus: Mapping[Channel, int]) -> tuple[Event, ...]:
    """Calls and waits in the order of their beginnings, up to the first that hangs."""
    timed: list[tuple[int, int, Event]] = []
    for place, one in enumerate(operations):
        record, (channel, sequence) = one.record, one.operation_id
        stuck = is_stuck(one) and sequence >= focus[channel]  # an earlier one that failed was caught
        waited_ns = record.wait_entered_ns if record.returned_ns is not None else None
        timed.append((record.entered_ns, place, Event(one, hangs=stuck and waited_ns is None)))
        if waited_ns is not None:
            timed.append((waited_ns, place, Event(one, is_wait=True, hangs=stuck)))
    timed.sort(key=lambda item: item[:2])
    events: list[Event] = []
    next_times = [*(at_ns for at_ns, _, _ in timed[1:]), _NEVER_NS]
    for (_, _, event), next_ns in zip(timed, next_times, strict=False):
        if event.is_wait and events and events[-1].operation is event.operation:
            # A wait directly after its call: one call that waits.
            events[-1] = replace(event, is_wait=False)
        else:
            events.append(replace(event, is_pending=_is_pending(event, next_ns)))
        if event.hangs:
            break
    return tuple(events)


def _is_pending(event: Event, next_ns: int) -> bool:
    """Whether a rank went on to its next call or wait before a call had ended."""
    record = event.operation.record
    if event.is_wait or event.hangs or record.returned_ns is None:
        return False
    return record.completed_ns is None or record.completed_ns > next_ns
