"""Makes a snapshot of a job from its dumps, for the judge.

A dump does not record three facts that a snapshot needs:

- Host, time of writing, and whether the process lives: every rank with a dump counts as alive.
- The state of the rank's threads: it is unknown.
- The open operation of a group that the device has reached: the first open operation counts as waiting, and later
  operations count as queued behind it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from otel_torchdist.model.calls import Channel, GroupView, OperationView, Progress
from otel_torchdist.model.kinds import RecordKind, TapeState
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.sources.flight.dump import GLOO, parse_profiling_name
from otel_torchdist.sources.flight.groups import RecordedGroups, names_by_id
from otel_torchdist.sources.flight.history import CondensedDump
from otel_torchdist.sources.flight.numbering import NumberedEntry
from otel_torchdist.sources.flight.operations import UNKNOWN_PEERS_TAG, arrival_of, channel_of, group_of, operation_view

DEFAULT_TIMEOUT_MS: Final = 600_000
"""NCCL's default timeout, for entries without one."""
_UNKNOWN_LOSSES: Final = -1
"""Value of `Progress.losses`: the rank may have entered more calls than known."""


class MomentKind(Enum):
    """The moment that a snapshot of dumps shows."""

    FIRST_TIMEOUT = "first timeout"
    """The time when the first timeout expired. The dumps were written by then."""
    NEWEST_TIME = "newest time"
    """The newest time in the dumps. They were written at that time or later."""
    DUMPS = "dumps"
    """The end that all dumps state. Only dumps exported by us state an end."""


@dataclass(frozen=True, slots=True)
class JobMoment:
    """The state of a job at a moment, from its dumps.

    Attributes:
        world: The snapshot. Its times are nanoseconds since the epoch, each by the clock of its rank's host.
        world_size: Ranks of the job; a lower bound if only dumps state it.
        unseen: Ranks without a dump, ascending.
        kind: The moment.
    """

    world: WorldSnapshot
    world_size: int
    unseen: tuple[int, ...]
    kind: MomentKind


def moment_of(dumps: Sequence[CondensedDump], world_size: int = 0) -> JobMoment:
    """Build the snapshot of a job.

    Args:
        dumps: One for each rank; at least one.
        world_size: Ranks of the job if known from elsewhere, otherwise 0. Dumps of higher ranks increase it.
    """
    groups = RecordedGroups([condensed.dump for condensed in dumps], world_size)
    knows_starts = any(map(_knows_starts, dumps))
    ranks = {condensed.rank: _Rank(condensed, groups, knows_starts) for condensed in dumps}
    groups_with_messages = frozenset(
        channel.group for rank in ranks.values() for channel in rank.channels if _shows_messages(channel)
    )
    newest_ns = max(condensed.newest_ns for condensed in dumps)
    until_ns = min((end for rank in ranks.values() for end in rank.timeouts_ns()), default=0)
    now_ns = max(newest_ns, until_ns) + 1
    views = {number: rank.view(groups_with_messages, now_ns) for number, rank in ranks.items()}
    world = WorldSnapshot(0, now_ns, MappingProxyType(_with_all_channels(views, ranks)))
    unseen = tuple(rank for rank in range(groups.world_size) if rank not in views)
    return JobMoment(world, groups.world_size, unseen, _kind_of_moment(dumps, until_ns > newest_ns))


def _kind_of_moment(dumps: Sequence[CondensedDump], is_timeout: bool) -> MomentKind:
    if all(condensed.dump.until_ns is not None for condensed in dumps):
        return MomentKind.DUMPS
    return MomentKind.FIRST_TIMEOUT if is_timeout else MomentKind.NEWEST_TIME


def _shows_messages(channel: Channel) -> bool:
    """Return whether a channel shows that its group's counters in `pg_status` may count sends and receives."""
    return channel.is_point_to_point or channel.tag == UNKNOWN_PEERS_TAG


class _Rank:
    """One rank's dump with resolved groups."""

    def __init__(self, condensed: CondensedDump, groups: RecordedGroups, knows_starts: bool) -> None:
        self.condensed = condensed
        self._groups = groups
        self._names = names_by_id(condensed.dump)
        self._waiting = frozenset(call.entry.record_id for call in _waiting(condensed, knows_starts))
        self._calls = [(call, group_of(groups, condensed.dump, call)) for call in condensed.calls]
        self.channels = {channel_of(call.lane, group) for call, group in self._calls}

    def timeouts_ns(self) -> list[int]:
        """Return the deadlines of the operations in which the rank waits; none if the dump states its end."""
        if self.condensed.dump.until_ns is not None:
            return []
        return [
            call.entry.created_ns + (call.entry.timeout_ms or DEFAULT_TIMEOUT_MS) * 1_000_000
            for call, _ in self._calls
            if call.entry.record_id in self._waiting
        ]

    def view(self, groups_with_messages: frozenset[str], now_ns: int) -> RankView:
        """Return the rank's view in a snapshot. `groups_with_messages` holds keys of groups."""
        condensed = self.condensed
        operations = [self._operation(call, group) for call, group in self._calls]
        ended = [operation for operation in operations if operation.record.completed_ns is not None]
        return RankView(
            rank=condensed.rank,
            nonce=condensed.rank + 1,
            run=0,
            run_is_sure=False,
            host="",
            created_ns=condensed.oldest_ns,
            alive=True,
            state=TapeState.RUNNING,
            failure="",
            gone_since_ns=None,
            heartbeat_ns=now_ns,  # dumps have no heartbeat: never stale
            step=0,
            open=tuple(operation for operation in operations if operation.record.completed_ns is None),
            last=max(ended, key=lambda operation: operation.record.number, default=None),
            progress=MappingProxyType(self._progress(operations, groups_with_messages)),
            losses=0,
            forgotten=not self._knows_all_groups(),
            wall_offset_ns=0,
            stacks=None,
            groups=MappingProxyType({group.key: group for _, group in self._calls if group is not None}),
        )

    def _operation(self, call: NumberedEntry, group: GroupView | None) -> OperationView:
        waits = call.entry.record_id in self._waiting
        return operation_view(self.condensed.dump, call, group, self.condensed.retired_is_ended, waits)

    def _knows_all_groups(self) -> bool:
        """Return whether the dump names every group in which the rank made a call."""
        statuses = self.condensed.dump.statuses
        return self.condensed.is_complete or (bool(statuses) and all(number in self._names for number in statuses))

    def _progress(
        self, operations: Sequence[OperationView], groups_with_messages: frozenset[str]
    ) -> dict[Channel, Progress]:
        by_channel: dict[Channel, list[OperationView]] = {}
        for operation in operations:
            by_channel.setdefault(operation.operation_id.channel, []).append(operation)
        progress = {channel: _progress_of(calls) for channel, calls in by_channel.items()}
        for number, status in self.condensed.dump.statuses.items():
            name = self._names.get(number)
            group = self._groups.group(self.condensed.dump, name) if name is not None else None
            if group is None:
                continue
            channel = Channel(RecordKind.OPERATION, group.key)
            recorded = progress.get(channel, Progress())
            if group.key not in groups_with_messages and recorded.entered <= max(status.enqueued, 0):
                completed = max(recorded.completed, status.completed)
                progress[channel] = recorded._replace(
                    entered=max(status.enqueued, 0), completed=completed, end_observed=completed
                )
            elif not self.condensed.is_complete and not recorded.entered:
                progress[channel] = recorded._replace(losses=_UNKNOWN_LOSSES)
        return progress


def _knows_starts(condensed: CondensedDump) -> bool:
    """Return whether the recorder records starts. `TORCH_NCCL_ENABLE_TIMING` is the same on all ranks."""
    if any(status.started >= 0 for status in condensed.dump.statuses.values()):
        return True
    return any(call.entry.started_ns is not None for call in condensed.calls)


def _waiting(condensed: CondensedDump, knows_starts: bool) -> list[NumberedEntry]:
    """Return the calls in which a rank waits: the first open call of each stream, with the calls coalesced with it.

    Each group has one stream for its collectives, and one for each pair of ranks. If the recorder records starts, a
    call that has not started is queued behind another stream.
    """
    first_batches: dict[tuple[str, frozenset[int], bool], int] = {}
    waiting: list[NumberedEntry] = []
    for call in condensed.calls:
        if not condensed.is_open(call):
            continue
        lane = call.lane
        batch = first_batches.setdefault(
            (lane.group, frozenset((lane.source, lane.destination)), lane.has_unknown_peers), call.batch
        )
        is_gloo = parse_profiling_name(call.entry.profiling_name).library == GLOO
        if batch == call.batch and (is_gloo or not knows_starts or call.entry.started_ns is not None):
            waiting.append(call)
    return waiting


def _progress_of(calls: Sequence[OperationView]) -> Progress:
    """Return a rank's progress in a channel, from the calls still in its dump."""
    entered = max(call.operation_id.sequence for call in calls)
    still_open = [call.operation_id.sequence for call in calls if call.record.completed_ns is None]
    arrivals = {call.operation_id.sequence: arrival_of(call) for call in reversed(calls)}
    completed, group = min(still_open) - 1 if still_open else entered, calls[0].group
    return Progress(
        entered=entered,
        completed=completed,
        end_observed=completed,
        end_observed_ns=max((call.record.completed_ns or 0 for call in calls), default=0),
        aligned=group is None or group.name.aligned,
        recent=tuple(arrivals[sequence] for sequence in sorted(arrivals)),
    )


def _with_all_channels(views: Mapping[int, RankView], ranks: Mapping[int, _Rank]) -> dict[int, RankView]:
    """Mark as unaligned the channels whose messages a rank may have exchanged before its dump begins."""
    channels = {channel for view in views.values() for channel in view.progress if channel.is_point_to_point}
    missing: dict[int, dict[Channel, Progress]] = {}
    for channel in channels:
        for number in (channel.source, channel.destination):
            rank = ranks.get(number)
            if rank is not None and not rank.condensed.is_complete and channel not in views[number].progress:
                missing.setdefault(number, {})[channel] = Progress(aligned=False)
    return {
        number: dataclasses.replace(view, progress=MappingProxyType({**view.progress, **missing[number]}))
        if number in missing
        else view
        for number, view in views.items()
    }
