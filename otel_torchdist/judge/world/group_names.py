"""Detects groups that ranks created in different orders, or that only some ranks created.

Each process of torch numbers the groups that it creates. The number is the group's name in the store, by which the
members of the group connect. If the group with one number has different members on two ranks, these ranks created
groups in different orders. Members of one group may then be connected with members of another, and their calls pair up
silently.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from otel_torchdist.judge.world.divergence import CallSide, Divergence
from otel_torchdist.judge.world.mismatch import Field, Mismatch
from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, NEW_GROUP, CallSiteName, GroupName
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.text import name_ranks


class CreatedGroups:
    """The groups created by the ranks of a run, by number."""

    def __init__(self, views: Collection[RankView]) -> None:
        """Index the groups. The index stays empty if a rank restarted its numbers, since others restart later."""
        self._views = {view.rank: view for view in views}
        self._by_name: dict[str, dict[int, GroupView]] = {}
        if any(_defaults(view) > 1 for view in views):
            return
        for view in views:
            for group in view.groups.values():
                if _is_counted(group.name):
                    self._by_name.setdefault(group.name.name, {})[view.rank] = group

    def differ_in(self, group: GroupView, is_new: bool) -> Mismatch | None:
        """Return the mismatched creations that affect a group; None if there are none.

        Args:
            group: The group.
            is_new: Whether all members are in its creation or first operation, which hangs. A working group is not
                affected by groups with the same number and other members.
        """
        names = sorted({view.groups[group.key].name.name for view in self._with(group)} & self._by_name.keys())
        is_split = len(names) > 1
        if not is_split and not is_new:
            return None
        name = next((candidate for candidate in names if self._is_contested(candidate)), None)
        if name is None:
            return None
        odd = self._odd_rank()
        parties = self._parties(name) if odd is None else self._against(odd, name)
        channel = Channel(RecordKind.RENDEZVOUS, group.key)
        divergence = Divergence(tuple(CallSide(NEW_GROUP, "", self._site(name, ranks)) for _, ranks in parties))
        return Mismatch(OperationId(channel, group.name.nth + 1), Field.MEMBERS, name, parties, divergence=divergence)

    def _with(self, group: GroupView) -> list[RankView]:
        return [view for view in self._views.values() if group.key in view.groups]

    def _is_contested(self, name: str) -> bool:
        return len({group.name.ranks for group in self._by_name[name].values()}) > 1

    def _odd_rank(self) -> int | None:
        """Return the rank without which all other ranks agree; None unless there is exactly one."""
        pairs = [*itertools.islice(self._pairs(), _MAX_PAIRS)]
        always = set(pairs[0]).intersection(*pairs) if pairs else set[int]()
        return always.pop() if len(always) == 1 else None

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Yield pairs of ranks with different groups under the same number."""
        for groups in self._by_name.values():
            for first, second in itertools.combinations(sorted(groups), 2):
                if groups[first].name.ranks != groups[second].name.ranks:
                    yield first, second

    def _parties(self, name: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        parties: dict[str, list[int]] = {}
        for rank, group in sorted(self._by_name[name].items()):
            parties.setdefault(name_ranks(group.name.ranks), []).append(rank)
        ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
        return tuple((text, tuple(ranks)) for text, ranks in ordered)

    def _against(self, odd: int, name: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return two parties: the odd rank, and all other ranks, which agree in all other groups."""
        groups = self._by_name[name]  # every differing pair contains the odd rank
        theirs = next(group for _, group in sorted(groups.items()) if group.name.ranks != groups[odd].name.ranks)
        others = tuple(rank for rank in sorted(self._views) if rank != odd)
        return (name_ranks(theirs.name.ranks), others), (name_ranks(groups[odd].name.ranks), (odd,))

    def _site(self, name: str, ranks: Collection[int]) -> CallSiteName | None:
        """Return the line where one of these ranks created its group of that number, or None if unknown."""
        for rank in ranks:
            group = self._by_name[name].get(rank)
            creation = Channel(RecordKind.RENDEZVOUS, group.key) if group is not None else None
            progress = self._views[rank].progress.get(creation) if creation is not None else None
            frames: Mapping[int, tuple[CallSiteName, ...]] = (
                {arrival.sequence: arrival.frames for arrival in progress.recent} if progress is not None else {}
            )
            if group is not None and frames.get(group.name.nth + 1):
                return frames[group.name.nth + 1][0]
        return None


_MAX_PAIRS: Final = 10_000


def _is_counted(name: GroupName) -> bool:
    is_counted = name.name.isdigit() and name.description != DEFAULT_DESCRIPTION
    return is_counted and name.aligned and not name.world and name.epoch == -1


def _defaults(view: RankView) -> int:
    return sum(
        group.name.description == DEFAULT_DESCRIPTION and not group.name.device for group in view.groups.values()
    )
