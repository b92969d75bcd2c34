"""Cuts the histories of ranks to the last calls in the channels that hang."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.mismatch import compare
from otel_torchdist.model.calls import Arrival, Channel, OperationId, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, How

GOOD_CALLS: Final = 2
"""Number of calls to keep before the hang in each channel. They show that the group works."""
_NEVER_NS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Event:
    """A call, or a wait for an earlier call.

    Attributes:
        operation: The call.
        is_wait: Whether this is a later wait for the call.
        hangs: Whether the rank hangs in it.
        is_pending: Whether the rank made its next call or wait before this call ended.
    """

    operation: OperationView
    is_wait: bool = False
    hangs: bool = False
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class Tails:
    """The last calls of ranks.

    Attributes:
        of_rank: Calls and waits of each rank in order. A hanging call or wait is last.
        first: The first position kept in each channel, on all ranks.
        several_threads: Whether several threads of a rank hang in calls.
    """

    of_rank: Mapping[int, tuple[Event, ...]]
    first: Mapping[Channel, int]
    several_threads: bool


def is_stuck(operation: OperationView) -> bool:
    """Return whether a rank waits in an operation, or waited until an exception or a device error ended the wait."""
    record = operation.record
    if record.completed_ns is not None:
        return record.how is How.FAILED
    return record.is_blocking or (operation.waiting_since_ns is not None and bool(record.flags & Flag.ON_DEVICE))


def tails_of(histories: Sequence[RankHistory], hangs_at: Mapping[Channel, int]) -> Tails:
    """Cut the histories of ranks.

    Args:
        histories: The histories of the ranks that matter.
        hangs_at: The position of the hang in each channel that matters.
    """
    in_channels = {
        history.rank: [call for call in history.operations if call.operation_id.channel in hangs_at]
        for history in histories
    }
    first = {channel: _first(channel, hangs_at[channel], in_channels) for channel in hangs_at}
    last = {channel: _last(channel, hangs_at[channel], in_channels.values()) for channel in hangs_at}
    of_rank: dict[int, tuple[Event, ...]] = {}
    several_threads = False
    for rank, operations in in_channels.items():
        kept = [
            call
            for call in operations
            if first[call.operation_id.channel] <= call.operation_id.sequence <= last[call.operation_id.channel]
        ]
        of_rank[rank] = _events(kept, hangs_at)
        threads = {call.record.thread for call in kept if is_stuck(call)}
        several_threads = several_threads or len(threads) > 1
    return Tails(of_rank, first, several_threads)


def _first(channel: Channel, hangs_at: int, ranks: Mapping[int, Sequence[OperationView]]) -> int:
    """Return the first position to keep: a few calls before the hang, but after lost calls and mismatches.

    Backends tolerate some mismatches, and different backends tolerate different ones.
    """
    first = max(1, hangs_at - GOOD_CALLS)
    at: dict[int, dict[int, Arrival]] = {}
    for rank, operations in ranks.items():
        known = [call for call in operations if call.operation_id.channel == channel]
        if known:
            first = max(first, min(known[0].operation_id.sequence, hangs_at))
        for call in known:
            sequence = call.operation_id.sequence
            if first <= sequence < hangs_at:
                at.setdefault(sequence, {})[rank] = Arrival(sequence, call.signature, call.record.peer)
    if channel.is_point_to_point:
        return first
    different = [sequence for sequence, calls in at.items() if compare(calls, OperationId(channel, sequence))]
    return max([first, *(sequence + 1 for sequence in different)])


def _last(channel: Channel, hangs_at: int, ranks: Iterable[Sequence[OperationView]]) -> int:
    """Return the last position to keep: the last one at which a rank hangs in this channel."""
    stuck = [
        call.operation_id.sequence
        for operations in ranks
        for call in operations
        if call.operation_id.channel == channel and is_stuck(call)
    ]
    return max([hangs_at, *stuck])


def _events(operations: Sequence[OperationView], hangs_at: Mapping[Channel, int]) -> tuple[Event, ...]:
    """Return calls and waits in the order in which they began, up to the first that hangs."""
    timed: list[tuple[int, int, Event]] = []
    for place, call in enumerate(operations):
        record, (channel, sequence) = call.record, call.operation_id
        stuck = is_stuck(call) and sequence >= hangs_at[channel]  # the program caught earlier failures
        waited_ns = record.wait_entered_ns if record.returned_ns is not None else None
        timed.append((record.entered_ns, place, Event(call, hangs=stuck and waited_ns is None)))
        if waited_ns is not None:
            timed.append((waited_ns, place, Event(call, is_wait=True, hangs=stuck)))
    timed.sort(key=lambda item: item[:2])
    events: list[Event] = []
    next_times = [*(at_ns for at_ns, _, _ in timed[1:]), _NEVER_NS]
    for (_, _, event), next_ns in zip(timed, next_times, strict=False):
        if event.is_wait and events and events[-1].operation is event.operation:
            # A wait directly after its call becomes a synchronous call.
            events[-1] = replace(event, is_wait=False)
        else:
            events.append(replace(event, is_pending=_is_pending(event, next_ns)))
        if event.hangs:
            break
    return tuple(events)


def _is_pending(event: Event, next_ns: int) -> bool:
    """Return whether a rank made its next call or wait before a call ended."""
    record = event.operation.record
    if event.is_wait or event.hangs or record.returned_ns is None:
        return False
    return record.completed_ns is None or record.completed_ns > next_ns
