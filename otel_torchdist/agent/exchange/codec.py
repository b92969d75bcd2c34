"""Converts snapshots of ranks to wire messages and back, and shifts their times from one node's clock to another's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from otel_torchdist.agent.exchange.wire import Answer, WireError, WireOperation, WireRank
from otel_torchdist.model.calls import Arrival, Channel, GroupView, OperationView, Progress, Window
from otel_torchdist.model.names import AtTimeout, GroupName
from otel_torchdist.model.operations import Operation
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.rank_state.occupations import RankCheckpoints
from otel_torchdist.model.rank_state.values import OutputChecksum, RankValues
from otel_torchdist.model.remote_calls import shifted
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import MemberRank

MAX_CHANNELS: Final = 256
"""Channels sent per rank: at most this many of collectives, and as many of sends and receives. If a rank has more,
`RankView.forgotten` is set."""
MAX_OUTPUTS: Final = 64
"""Output checksums sent per rank; the newest are kept."""
MAX_UNKNOWN: Final = 64
"""Operations with unknown inputs sent per rank; the newest are kept."""
MAX_OPEN: Final = 256
MAX_SYMPTOMS: Final = 16


def answer_of(
    world: WorldSnapshot,
    agent_id: int,
    suspects_stall: bool,
    now_ns: int,
    calls: Collection[tuple[Channel, int]] = (),
    earlier: Iterable[WorldSnapshot] = (),
) -> Answer:
    """Return the snapshot of this agent as an answer to another agent.

    Args:
        world: The snapshot.
        agent_id: See `Answer`.
        suspects_stall: See `Answer`.
        now_ns: See `Answer`.
        calls: Windows to include with all their calls.
        earlier: Snapshots sent earlier, which may still contain these windows.
    """
    groups = _Groups()
    snapshots = [world, *earlier]
    ranks = tuple(
        _wire_rank(view, groups, _windows(view.rank, snapshots, calls))
        for view in world.in_order
        if not isinstance(view.rank, MemberRank)
    )
    return Answer(agent_id, now_ns, suspects_stall, tuple(groups.names), ranks)


def views_of(answer: Answer, run: int, offset_ns: int, wall_offset_ns: int, error_ns: int = 0) -> tuple[RankView, ...]:
    """Return the ranks in the answer of another agent.

    Args:
        answer: The answer.
        run: Id of the run.
        offset_ns: Our monotonic clock minus the other agent's.
        wall_offset_ns: Our wall clock minus our monotonic clock: all reports on an incident use one clock.
        error_ns: Maximum error of `offset_ns`.

    Raises:
        WireError: An operation refers to a group that the answer does not list.
    """
    groups = [_group_of(name) for name in answer.groups]
    return tuple(_view(rank, groups, run, offset_ns, wall_offset_ns, error_ns) for rank in answer.ranks)


def _group_of(name: GroupName) -> GroupView:
    """Return the view of a group. Members of a standalone process group are left out: they are not ranks of the run."""
    if name.world:
        return GroupView(name.key, name, frozenset(), is_inferred=True)
    return GroupView(name.key, name, frozenset(name.ranks))


class _Groups:
    """The groups of an answer. Each is written only once, because it may have thousands of members."""

    def __init__(self) -> None:
        self.names: list[GroupName] = []
        self._indices: dict[tuple[str, int, AtTimeout], int] = {}

    def index_of(self, group: GroupView | None) -> int:
        if group is None:
            return -1
        key = (group.key, group.name.timeout_ms, group.name.at_timeout)
        if key not in self._indices:
            self._indices[key] = len(self.names)
            self.names.append(group.name)
        return self._indices[key]


def _wire_rank(view: RankView, groups: _Groups, windows: Mapping[Channel, tuple[Window, ...]]) -> WireRank:
    channels = _channels_to_send(view)
    outputs = view.values.outputs[-MAX_OUTPUTS:]
    for key in {output.operation_id.channel.group for output in outputs}:
        groups.index_of(view.groups.get(key))
    sent = replace(
        without_local_fields(view),
        progress={channel: _trimmed_progress(channel, view, view.progress[channel]) for channel in channels},
        # A loss marks the view as incomplete: an operation that is left out must not count as ended.
        losses=view.losses + (len(view.open) > MAX_OPEN),
        forgotten=view.forgotten or len(channels) < len(view.progress),
        windows=windows,
        values=_newest_values(view.values),
        symptoms=view.symptoms[:MAX_SYMPTOMS],
        checkpoints=replace(view.checkpoints, open=view.checkpoints.open[:MAX_OPEN]),
        occupations=view.occupations[:MAX_OPEN],
    )
    return WireRank(
        sent,
        open=tuple(_wire_operation(operation, groups) for operation in view.open[:MAX_OPEN]),
        last=None if view.last is None else _wire_operation(view.last, groups),
    )


def without_local_fields(view: RankView) -> RankView:
    """Return a view without the fields that an answer must not contain, or contains elsewhere.

    Applied before sending and again after receiving, because the receiver does not trust these fields.
    """
    return replace(
        view,
        run=0,
        open=(),
        last=None,
        arrivals={},
        groups={},
        wall_offset_ns=0,
        is_new=False,
        ran_ns=0,
        is_remote=False,
        fell_silent=False,
        world="",
        world_size=0,
        world_ranks={},
        other_sizes={},
        data_wait_ns=0,
        clock_error_ns=0,
        twins=(),
    )


def _windows(
    rank: int, snapshots: list[WorldSnapshot], calls: Collection[tuple[Channel, int]]
) -> dict[Channel, tuple[Window, ...]]:
    """Return a rank's windows: those in `calls` with all their calls, any other only with its digest."""
    by_channel: dict[Channel, dict[int, Window]] = {}
    for snapshot in reversed(snapshots):
        view = snapshot.ranks.get(rank)
        for channel, windows in view.windows.items() if view is not None else ():
            is_newest = snapshot is snapshots[0]
            for window in windows:
                is_wanted = (channel, window.number) in calls
                if is_newest or is_wanted:
                    by_channel.setdefault(channel, {})[window.number] = _wire_window(window, in_full=is_wanted)
    return {channel: tuple(windows.values()) for channel, windows in by_channel.items()}


def _wire_window(window: Window, in_full: bool) -> Window:
    return window._replace(arrivals=tuple(map(_without_callers, window.arrivals)) if in_full else ())


def _channels_to_send(view: RankView) -> set[Channel]:
    """Return the channels to send: those with open operations, and the newest of each kind; see `MAX_CHANNELS`."""
    with_open = {operation.operation_id.channel for operation in view.open} & view.progress.keys()
    collective = [channel for channel in view.progress if not channel.is_point_to_point][-MAX_CHANNELS:]
    point_to_point = [channel for channel in view.progress if channel.is_point_to_point][-MAX_CHANNELS:]
    return {*with_open, *collective, *point_to_point}


def _trimmed_progress(channel: Channel, view: RankView, progress: Progress) -> Progress:
    """Drop the calls of sends and receives, which are never compared, and most callers.

    Callers are kept on channels with an open operation of the rank, and on the channel of its last operation.
    """
    if channel.is_point_to_point:
        return progress._replace(recent=())
    current = [*view.open, *((view.last,) if view.last is not None else ())]
    if any(operation.operation_id.channel == channel for operation in current):
        return progress
    return progress._replace(recent=tuple(map(_without_callers, progress.recent)))


def _without_callers(arrival: Arrival) -> Arrival:
    """Keep only the innermost frame of a call."""
    return arrival._replace(frames=arrival.frames[:1])


def _without_names(output: OutputChecksum) -> OutputChecksum:
    """Drop the parameter names: they are many, and the members on the other node have the same names."""
    if output.parameters is None or not output.parameters.names:
        return output
    return replace(output, parameters=replace(output.parameters, names=()))


def _wire_operation(operation: OperationView, groups: _Groups) -> WireOperation:
    return WireOperation(replace(operation, group=None), groups.index_of(operation.group))


def _view(
    rank: WireRank, groups: list[GroupView], run: int, offset_ns: int, wall_offset_ns: int, error_ns: int
) -> RankView:
    def operation(wire: WireOperation) -> OperationView:
        if wire.group >= len(groups):
            raise WireError("an operation refers to a group that is not listed")
        view = wire.view
        return replace(
            view,
            record=_shifted(view.record, offset_ns),
            group=groups[wire.group] if wire.group >= 0 else None,
            waiting_since_ns=shifted(view.waiting_since_ns, offset_ns),
        )

    view = without_local_fields(rank.view)
    stacks, stopped, child = view.stacks, view.stopped, view.child
    return replace(
        view,
        run=run,
        is_remote=True,
        wall_offset_ns=wall_offset_ns,
        clock_error_ns=error_ns,
        groups=_by_key(groups),
        open=tuple(map(operation, rank.open)),
        last=None if rank.last is None else operation(rank.last),
        created_ns=view.created_ns + offset_ns,
        gone_since_ns=shifted(view.gone_since_ns, offset_ns),
        heartbeat_ns=view.heartbeat_ns + offset_ns,
        progress={channel: _shifted_progress(progress, offset_ns) for channel, progress in view.progress.items()},
        stacks=None if stacks is None else stacks.moved(offset_ns),
        stopped=None if stopped is None else replace(stopped, since_ns=stopped.since_ns + offset_ns),
        expects_until_ns=view.expects_until_ns + offset_ns if view.expects_until_ns else 0,
        seen_alive_ns=view.seen_alive_ns + offset_ns if view.seen_alive_ns else 0,
        death=None if view.death is None else _shifted_death(view.death, offset_ns),
        values=_shifted_values(view.values, offset_ns),
        asked_ns=view.asked_ns + offset_ns if view.asked_signal else 0,
        switched_off_ns=view.switched_off_ns + offset_ns if view.switched_off_ns else 0,
        checkpoints=_shifted_checkpoints(view.checkpoints, offset_ns),
        child=None if child is None else replace(child, since_ns=child.since_ns + offset_ns),
        symptoms=tuple(replace(symptom, at_ns=symptom.at_ns + offset_ns) for symptom in view.symptoms[:MAX_SYMPTOMS]),
        worker=None if view.worker is None else view.worker.moved(offset_ns),
        occupations=tuple(
            occupation._replace(since_ns=occupation.since_ns + offset_ns) for occupation in view.occupations
        ),
        pace=view.pace.moved(offset_ns),
    )


def _by_key(groups: Iterable[GroupView]) -> Mapping[str, GroupView]:
    return {group.key: group for group in groups}


def _shifted(record: Operation, offset_ns: int) -> Operation:
    return msgspec.structs.replace(
        record,
        entered_ns=record.entered_ns + offset_ns,
        returned_ns=shifted(record.returned_ns, offset_ns),
        wait_entered_ns=shifted(record.wait_entered_ns, offset_ns),
        wait_returned_ns=shifted(record.wait_returned_ns, offset_ns),
        started_ns=shifted(record.started_ns, offset_ns),
        completed_ns=shifted(record.completed_ns, offset_ns),
    )


def _shifted_progress(progress: Progress, offset_ns: int) -> Progress:
    return (
        progress._replace(end_observed_ns=progress.end_observed_ns + offset_ns)
        if progress.end_observed_ns
        else progress
    )


def _newest_values(values: RankValues) -> RankValues:
    """Return a rank's values, reduced to the newest `MAX_OUTPUTS` and `MAX_UNKNOWN`."""
    older = values.unknown[:-MAX_UNKNOWN]
    return replace(
        values,
        outputs=tuple(map(_without_names, values.outputs[-MAX_OUTPUTS:])),
        unknown=values.unknown[-MAX_UNKNOWN:],
        unknown_until=max([values.unknown_until, *(operation.step for operation in older)]),
    )


def _shifted_values(values: RankValues, offset_ns: int) -> RankValues:
    non_finite = tuple(replace(value, at_ns=value.at_ns + offset_ns) for value in values.non_finite)
    return replace(values, non_finite=non_finite)


def _shifted_checkpoints(checkpoints: RankCheckpoints, offset_ns: int) -> RankCheckpoints:
    return RankCheckpoints(
        tuple(replace(stage, since_ns=stage.since_ns + offset_ns) for stage in checkpoints.open),
        tuple(replace(stage, ended_ns=stage.ended_ns + offset_ns) for stage in checkpoints.failed),
    )


def _shifted_death(death: Death, offset_ns: int) -> Death:
    since_ns = death.stopped_since_ns + offset_ns if death.stopped_since_ns else 0
    ran_ns = death.ran_ns + offset_ns if death.ran_ns else 0
    return replace(death, at_ns=death.at_ns + offset_ns, stopped_since_ns=since_ns, ran_ns=ran_ns)
