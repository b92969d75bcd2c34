"""Joins runs whose processes share a standalone process group, such as a trainer and its engines.

Such a group has a world of its own, so a process can be in several worlds. A process that waits in one world does
nothing in the others. So these runs form one snapshot: ranks of the largest run keep their numbers, and processes of
other runs get numbers above all ranks. Group members are then numbers of the snapshot, not ranks of the world.

Runs with ranks on other nodes are not joined. For these runs, and for processes without a tape, the other members of
the shared world also get numbers above all ranks, because the world's rank 1 is not the run's rank 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from otel_torchdist.model.calls import Channel, GroupView, OperationId, OperationView
from otel_torchdist.model.rank_state.values import NO_VALUES
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.text import MemberRank

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Process(NamedTuple):
    """A process of one of the joined runs.

    Attributes:
        run: Index of its run among the joined runs, the largest first.
    """

    run: int
    view: RankView


def joined(runs: Mapping[K, Mapping[int, RankView]]) -> dict[K, dict[int, RankView]]:
    """Return the runs to judge. Linked runs are joined under the largest of them, and their processes renumbered.

    Args:
        runs: Ranks of each run.
    """
    if not any(view.world_ranks for ranks in runs.values() for view in ranks.values()):
        return {key: dict(ranks) for key, ranks in runs.items()}
    joined_runs: dict[K, dict[int, RankView]] = {}
    for keys in _linked(runs):
        ordered = sorted(keys, key=lambda key: _precedence(runs[key]))
        views = [_Process(run, view) for run, key in enumerate(ordered) for view in runs[key].values()]
        joined_runs[ordered[0]] = (
            _Joined(_latest(views)).views
            if any(process.view.world_ranks for process in views)
            else {process.view.rank: process.view for process in views}
        )
    return joined_runs


def _precedence(ranks: Mapping[int, RankView]) -> tuple[int, bool, bool, int, int]:
    """Return the sort key of a run, equal for all observers: by size, then by rank 0 of the shared world."""
    oldest = min(ranks.values(), key=lambda view: (view.created_ns, view.nonce))
    is_sender = any(rank == 0 for view in ranks.values() for rank in view.world_ranks.values())
    return -len(ranks), bool(oldest.world), not is_sender, oldest.created_ns, oldest.nonce


def _linked(runs: Mapping[K, Mapping[int, RankView]]) -> list[list[K]]:
    """Return the keys of runs, grouped by shared worlds. A run that shares no world is a group by itself."""
    sharing: dict[str, list[tuple[K, RankView]]] = {}
    for key, ranks in runs.items():
        if not _is_complete(ranks):
            continue
        for view in ranks.values():
            for group in view.world_ranks:
                sharing.setdefault(group, []).append((key, view))
    linked = {key: [key] for key in runs}
    for members in sharing.values():
        first, seen = members[0]
        for key, view in members[1:]:
            if linked[key] is not linked[first] and view.lifetime.overlaps(seen.lifetime):
                linked[first].extend(linked[key])
                for linked_key in linked[key]:
                    linked[linked_key] = linked[first]
    return list({id(keys): keys for keys in linked.values()}.values())


def _is_complete(ranks: Mapping[int, RankView]) -> bool:
    """Return whether all ranks of a run are on this node. A process only in a shared world is a complete run."""
    return all(view.world for view in ranks.values()) or len(ranks) >= max(view.world_size for view in ranks.values())


def _latest(processes: Iterable[_Process]) -> list[_Process]:
    """Leave out processes that were restarted: a newer process has the same rank in the same world."""
    known = list(processes)
    newest: dict[tuple[str, int], int] = {}
    for process in known:
        for world_rank in process.view.world_ranks.items():
            newest[world_rank] = max(newest.get(world_rank, 0), process.view.created_ns)
    return [
        process
        for process in known
        if process.run == 0
        or process.view.alive
        or not process.view.world_ranks
        or any(newest[world_rank] == process.view.created_ns for world_rank in process.view.world_ranks.items())
    ]


class _Joined:
    """Processes of several runs under common numbers.

    Attributes:
        views: The processes by number, with all references renumbered.
    """

    def __init__(self, processes: list[_Process]) -> None:
        """Number the processes. Processes of the first run keep their ranks."""
        self._first = first = [process.view for process in processes if process.run == 0]
        self._next = max(max(view.world_size, view.rank + 1) for view in first)
        self._own_world = first[0].world
        self._holders: dict[str, dict[int, int]] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._unseen: dict[tuple[str, int], int] = {}
        ordered = sorted(processes, key=lambda process: (process.run > 0, process.view.created_ns, process.view.nonce))
        taken = {view.rank for view in first}
        for process in ordered:
            view = process.view
            number = view.rank
            if process.run and not (self._own_world and view.world == self._own_world and view.rank not in taken):
                number = self._new_number(_label(view))
            taken.add(number)
            self._numbers[process.run, view.rank] = number
            for group, rank in view.world_ranks.items():
                self._holders.setdefault(group, {})[rank] = number
        shown = ((self._numbers[run, view.rank], self._shown(run, view)) for run, view in ordered)
        self.views = dict(sorted(shown, key=lambda numbered: numbered[0]))

    def _new_number(self, label: str) -> int:
        number = MemberRank(self._next, label)
        self._next += 1
        return number

    def _shown(self, run: int, view: RankView) -> RankView:
        """Return a process under its number, without data compared by findings: other worlds run other programs."""
        if not run and not view.world_ranks:
            return view
        of_worlds = {key: view.groups[key] for key in view.world_ranks if key in view.groups}
        groups = {key: self._group(run, group) for key, group in (view.groups if run else of_worlds).items()}
        numbers = _Numbers(self, run, groups)
        return replace(
            view,
            rank=self._numbers[run, view.rank],
            groups={**({} if run else view.groups), **{group.key: group for group in groups.values()}},
            open=tuple(map(numbers.operation, view.open)),
            last=numbers.operation(view.last) if view.last is not None else None,
            progress=numbers.channels(view.progress),
            windows={} if run else numbers.own(view.windows),
            arrivals={} if run else numbers.own(view.arrivals),
            values=NO_VALUES if run else view.values,
        )

    def _group(self, run: int, group: GroupView) -> GroupView:
        if not run and not group.name.world:
            return group
        members = frozenset(self.number(run, group, rank) for rank in group.name.ranks)
        # Two runs may have groups with the same key, since it consists of ranks.
        key = group.key if group.name.world else f"{group.key}.{run}"
        return replace(group, key=key, members=members, is_inferred=group.is_inferred and not group.name.world)

    def number(self, run: int, group: GroupView, rank: int) -> int:
        """Return the number of a member of a group, by its rank in the group's world."""
        name = group.name
        if not name.world:
            known = self._numbers.get((run, rank))
        else:
            known = self._holders.get(name.key, {}).get(rank, rank if name.world == self._own_world else None)
        if known is not None or (not run and not name.world):
            return rank if known is None else known
        key = name.world or f"run {run}", rank
        if key not in self._unseen:
            self._unseen[key] = self._new_number(f"{rank} of {group.label}")
        return self._unseen[key]


class _Numbers:
    """The references of one process, renumbered."""

    def __init__(self, joined: _Joined, run: int, groups: Mapping[str, GroupView]) -> None:
        self._joined = joined
        self._run = run
        self._groups = groups
        self._changed = {key for key, group in groups.items() if run or group.name.world}

    def operation(self, operation: OperationView) -> OperationView:
        """Return an operation with its group and channel renumbered."""
        channel, sequence = operation.operation_id
        if channel.group not in self._changed:
            return operation
        shown = OperationId(self.channel(channel), sequence)
        group = self._groups[channel.group] if operation.group is not None else None
        return replace(operation, operation_id=shown, group=group)

    def channel(self, channel: Channel) -> Channel:
        """Return a channel with its group and, for messages, its source and destination renumbered."""
        group = self._groups.get(channel.group)
        if group is None or channel.group not in self._changed:
            return channel
        if not channel.is_point_to_point:
            return channel._replace(group=group.key)
        source, destination = (
            rank if rank < 0 else self._joined.number(self._run, group, rank)
            for rank in (channel.source, channel.destination)
        )
        return channel._replace(group=group.key, source=source, destination=destination)

    def channels(self, by_channel: Mapping[Channel, T]) -> Mapping[Channel, T]:
        """Return a mapping with its channels renumbered."""
        if not any(channel.group in self._changed for channel in by_channel):
            return by_channel
        return {self.channel(channel): value for channel, value in by_channel.items()}

    def own(self, by_channel: Mapping[Channel, T]) -> Mapping[Channel, T]:
        """Return a mapping by channel, without the channels of other worlds."""
        return {channel: value for channel, value in by_channel.items() if channel.group not in self._changed}


def _label(view: RankView) -> str:
    """Describe a process of another run by its rank in the world that it shares with this run."""
    group = next((view.groups[key] for key in view.world_ranks if key in view.groups), None)
    if group is not None:
        return f"{group.name.world_rank} of {group.label}"
    return f"{view.rank} of run {view.run:032x}"[: len(f"{view.rank} of run ") + 8]
