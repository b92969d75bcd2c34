"""Selects the calls to export, for all ranks together, and counts the calls left out."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from otel_torchdist.model.calls import Channel, OperationId, OperationView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, RecordKind
from otel_torchdist.sources.flight.dump import recorded_operation


@dataclass(frozen=True, slots=True)
class ExportChoice:
    """The calls to export. By default, all.

    Attributes:
        kinds: Names of operations, or shell patterns such as `all_*`; empty for all.
        newest: Upper bound on the calls of each rank; the newest are kept. None for no bound.
        within_ns: Maximum age of a call when the newest call of the run was entered; None for any age.
    """

    kinds: tuple[str, ...] = ()
    newest: int | None = None
    within_ns: int | None = None

    def is_of_kind(self, operation: OperationView) -> bool:
        """Return whether an operation matches `kinds`."""
        return not self.kinds or _matches(operation.name, self.kinds)

    def starts(self, histories: Sequence[RankHistory]) -> dict[int, int]:
        """Return the number of the first record that is recent enough, by rank."""
        newest_ns = max(map(_newest_ns, histories), default=0)
        return {history.rank: self._start(history, newest_ns) for history in histories}

    def _start(self, history: RankHistory, newest_ns: int) -> int:
        operations = history.operations
        if self.newest is not None:
            operations = operations[max(len(operations) - self.newest, 0) :]
        if self.within_ns is not None:
            oldest_ns = newest_ns - self.within_ns - history.wall_offset_ns
            operations = tuple(operation for operation in operations if operation.record.entered_ns >= oldest_ns)
        if operations:
            return operations[0].record.number
        return history.operations[-1].record.number + 1 if history.operations else 0


def _newest_ns(history: RankHistory) -> int:
    return history.operations[-1].record.entered_ns + history.wall_offset_ns if history.operations else 0


@lru_cache(maxsize=1_024)
def _matches(name: str, kinds: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, kind) for kind in kinds)


class Reason(enum.Enum):
    """The reason for leaving out calls. The value completes `12 calls left out: …`."""

    UNKNOWN_OPERATION = "a flight recorder does not know these operations"
    OPEN_CREATION = (
        "a flight recorder does not record the creation of groups, so a rank that waits there may seem to be missing "
        "from other operations; `otel-torchdist diagnose` reads the tapes, which record it"
    )
    UNALIGNED = "their numbers are not comparable between ranks, as in groups that were used before the recording began"
    ANY_SOURCE = "they are received from any rank, or by a rank that receives from any"
    OVERWRITTEN = "the calls of other members at the same positions are unknown: overwritten or damaged"


class LeftOut:
    """Counts of calls left out, by reason and operation."""

    def __init__(self) -> None:
        self._counts: dict[Reason, Counter[str]] = {}

    def add(self, reason: Reason, operation: OperationView) -> None:
        """Count a call."""
        self._counts.setdefault(reason, Counter())[operation.name] += 1

    def counts(self) -> Iterator[tuple[Reason, Counter[str]]]:
        """Yield the number of calls by reason and operation."""
        for reason in Reason:
            if reason in self._counts:
                yield reason, self._counts[reason]


# `torchfrtrace` reports a rank as missing if its dump lacks an entry of other members of its group. So a position of a
# group is written for every member that reached it, or for no member.

_ByRank = dict[int, OperationView]


class Positions:
    """The positions to write, and their calls.

    Attributes:
        calls: The calls at each position, by rank.
        left_out: Selected calls that cannot be written.
    """

    def __init__(self, histories: Sequence[RankHistory], choice: ExportChoice) -> None:
        """Select the positions.

        Args:
            histories: One for each rank.
            choice: The calls to export.
        """
        self.left_out = LeftOut()
        self._lossy = frozenset(history.rank for history in histories if history.lost)
        self._ranks = frozenset(history.rank for history in histories)
        self._newest: dict[tuple[Channel, int], int] = {}
        self._completed: dict[Channel, int] = {}
        by_position: dict[OperationId, _ByRank] = {}
        from_any = _received_from_any(histories)
        for history in histories:
            for operation in history.operations:
                reason = _reason_to_leave_out(operation, from_any)
                if reason is None:
                    self._record_progress(history.rank, operation)
                    by_position.setdefault(operation.operation_id, {})[history.rank] = operation
                elif reason is not Reason.OPEN_CREATION or operation.record.completed_ns is None:
                    self._leave_out(reason, operation, choice)
        starts = choice.starts(histories)
        self.calls = {
            position: calls
            for position, calls in by_position.items()
            if _is_wanted(calls, choice, starts) and self._is_known(position, calls)
        }

    def _record_progress(self, rank: int, operation: OperationView) -> None:
        channel, sequence = operation.operation_id
        self._newest[channel, rank] = max(sequence, self._newest.get((channel, rank), 0))
        if operation.record.completed_ns is not None:
            self._completed[channel] = max(sequence, self._completed.get(channel, 0))

    def _leave_out(self, reason: Reason, operation: OperationView, choice: ExportChoice) -> None:
        if choice.is_of_kind(operation):
            self.left_out.add(reason, operation)

    def _is_known(self, position: OperationId, calls: _ByRank) -> bool:
        """Return whether each member has a call at a position, or provably has none."""
        members = _members(position.channel, next(iter(calls.values())))
        if all(rank in calls or self._is_absent(rank, position) for rank in members & self._ranks):
            return True
        for operation in calls.values():
            self.left_out.add(Reason.OVERWRITTEN, operation)
        return False

    def _is_absent(self, rank: int, position: OperationId) -> bool:
        channel, sequence = position
        newest = self._newest.get((channel, rank))
        if rank not in self._lossy:
            return True
        # Open operations stay on the tape: a rank without one has not reached this position.
        return sequence > (newest if newest is not None else self._completed.get(channel, 0))


def _members(channel: Channel, operation: OperationView) -> frozenset[int]:
    if channel.is_point_to_point:
        return frozenset((channel.source, channel.destination))
    return operation.group.members if operation.group is not None else frozenset()


def _received_from_any(histories: Sequence[RankHistory]) -> frozenset[tuple[str, int, int]]:
    """Return the group, rank and tag of every receive from any rank."""
    channels = {operation.operation_id.channel for history in histories for operation in history.operations}
    return frozenset(
        (channel.group, channel.destination, channel.tag)
        for channel in channels
        if channel.destination >= 0 > channel.source
    )


def _reason_to_leave_out(operation: OperationView, from_any: frozenset[tuple[str, int, int]]) -> Reason | None:
    """Return the reason why a call cannot be written; None if it can."""
    channel = operation.operation_id.channel
    if channel.kind is RecordKind.RENDEZVOUS:
        return Reason.OPEN_CREATION
    if recorded_operation(operation.name) is None:
        return Reason.UNKNOWN_OPERATION
    if operation.group is None:
        return Reason.OVERWRITTEN
    if not operation.group.name.aligned:
        return Reason.UNALIGNED
    is_sent = bool(operation.record.flags & Flag.POINT_TO_POINT)
    is_from_any = not channel.is_point_to_point or (channel.group, channel.destination, channel.tag) in from_any
    return Reason.ANY_SOURCE if is_sent and is_from_any else None


def _is_wanted(calls: _ByRank, choice: ExportChoice, starts: dict[int, int]) -> bool:
    """Return whether a call at a position matches `kinds`, and all calls are recent enough or one is still open."""
    if not any(map(choice.is_of_kind, calls.values())):
        return False
    is_recent = all(operation.record.number >= starts[rank] for rank, operation in calls.items())
    return is_recent or any(operation.record.completed_ns is None for operation in calls.values())


def in_order(positions: Positions, history: RankHistory) -> Iterator[OperationView]:
    """Yield the calls of a rank to write, in the order of its history."""
    for operation in history.operations:
        if positions.calls.get(operation.operation_id, {}).get(history.rank) is operation:
            yield operation
