"""Groups that ranks have created in another order, or only some of them: torch numbers the groups of each process.

The number is the group's name in the store, by which its members find each other. So ranks that have the same number
for groups of different members have not created the same groups in one order, and who meets whom is chance: the members
of one group may be connected with those of another, whose calls then go together without a word.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from otel_torchdist.judge.world.mismatch import Field, Mismatch
from otel_torchdist.judge.world.ways import CallSide, Ways
from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, NEW_GROUP, CallSiteName, GroupName
from otel_torchdist.model.naming import name_ranks
from otel_torchdist.model.snapshot import RankView


class CreatedGroups:
    """Which groups the ranks of a run have created under which number."""

    def __init__(self, views: Collection[RankView]) -> None:
        """Index the groups; empty where numbers have begun anew, for which ranks are never at the same one at once."""
        self._views = {view.rank: view for view in views}
        self._by_name: dict[str, dict[int, GroupView]] = {}
        if any(_defaults(view) > 1 for view in views):
            return
        for view in views:
            for group in view.groups.values():
                if _is_counted(group.name):
                    self._by_name.setdefault(group.name.name, {})[view.rank] = group

    def differ_in(self, group: GroupView, is_new: bool) -> Mismatch | None:
        """The creations in which ranks differ, if they concern a group; None if they agree.

        Args:
            group: The group.
            is_new: Whether its members do not get through its creation or first operation, although all are in it. One
                that works is not disturbed by others of its number that do not share its members.
        """
        names = sorted({view.groups[group.key].name.name for view in self._with(group)} & self._by_name.keys())
        is_split = len(names) > 1
        if not is_split and not is_new:
            return None
        name = next((one for one in names if self._rivals(one)), None)
        if name is None:
            return None
        odd = self._odd_rank()
        parties = self._parties(name) if odd is None else self._against(odd, name)
        channel = Channel(RecordKind.RENDEZVOUS, group.key)
        ways = Ways(tuple(CallSide(NEW_GROUP, "", self._site(name, ranks)) for _, ranks in parties))
        return Mismatch(OperationId(channel, group.name.nth + 1), Field.MEMBERS, name, parties, ways=ways)

    def _with(self, group: GroupView) -> list[RankView]:
        return [view for view in self._views.values() if group.key in view.groups]

    def _rivals(self, name: str) -> bool:
        return len({group.name.ranks for group in self._by_name[name].values()}) > 1

    def _odd_rank(self) -> int | None:
        """The one rank without which all others would agree; None if there is no such rank, or more than one."""
        pairs = [*itertools.islice(self._pairs(), _MAX_PAIRS)]
        always = set(pairs[0]).intersection(*pairs) if pairs else set[int]()
        return always.pop() if len(always) == 1 else None

    def _pairs(self) -> Iterator[tuple[int, int]]:
        """Ranks that have another group under the same number, two at a time."""
        for groups in self._by_name.values():
            for one, other in itertools.combinations(sorted(groups), 2):
                if groups[one].name.ranks != groups[other].name.ranks:
                    yield one, other

    def _parties(self, name: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        found: dict[str, list[int]] = {}
        for rank, group in sorted(self._by_name[name].items()):
            found.setdefault(name_ranks(group.name.ranks), []).append(rank)
        ordered = sorted(found.items(), key=lambda party: (-len(party[1]), party[1]))
        return tuple((text, tuple(ranks)) for text, ranks in ordered)

    def _against(self, odd: int, name: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The odd rank against all others: that they agree shows in all other groups."""
        groups = self._by_name[name]  # it is in all pairs that differ
        theirs = next(group for _, group in sorted(groups.items()) if group.name.ranks != groups[odd].name.ranks)
        others = tuple(rank for rank in sorted(self._views) if rank != odd)
        return (name_ranks(theirs.name.ranks), others), (name_ranks(groups[odd].name.ranks), (odd,))

    def _site(self, name: str, ranks: Collection[int]) -> CallSiteName | None:
        """The line in which one of these ranks has created its group of that number, if it is known."""
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
