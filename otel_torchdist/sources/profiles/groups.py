"""The process groups of a job, as its traces describe them together.

A trace names the groups of its rank with their members, except that lists of more than 30 ranks are cut, and that older
traces have only names or sizes. What one trace leaves out, another may have: a group that as many ranks have used as it
has members is that of these ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, GroupName
from otel_torchdist.sources.flight.groups import numbers_of
from otel_torchdist.sources.profiles.profile import CallArguments, ProfiledGroup, RankProfile

_NO_DESCRIPTION: Final = ("undefined", "")


class ProfiledGroups:
    """Resolves the groups of a job's traces."""

    def __init__(self, profiles: Iterable[RankProfile]) -> None:
        """Collect what all traces say; their calls are not kept."""
        self._own: dict[int, dict[str, ProfiledGroup]] = {}
        self._members: dict[str, set[tuple[int, ...]]] = {}
        self._users: dict[tuple[str, int], set[int]] = {}
        self._descriptions: dict[str, str] = {}
        self._backends: dict[str, str] = {}
        highest = -1
        world_size = 0
        for profile in profiles:
            own = self._own.setdefault(profile.rank, {})
            world_size = max(world_size, profile.world_size)
            highest = max(highest, profile.rank)
            for group in profile.groups:
                if group.name not in own or len(group.ranks) > len(own[group.name].ranks):
                    own[group.name] = group
                if group.ranks:
                    self._members.setdefault(group.name, set()).add(group.ranks)
                    highest = max(highest, group.ranks[-1])
                if group.size:
                    self._users.setdefault((group.name, group.size), set()).add(profile.rank)
                if group.description not in _NO_DESCRIPTION:
                    self._descriptions.setdefault(group.name, group.description)
                if group.backend:
                    self._backends.setdefault(group.name, group.backend)
        self.world_size: Final = max(world_size, highest + 1)
        self._everyone = tuple(range(self.world_size))
        self._resolved: dict[tuple[int, str | None, int, bool], GroupView | None] = {}
        self._views: dict[tuple[str, tuple[int, ...], bool], GroupView] = {}
        self._nth = numbers_of(
            {
                (group.name, ranks)
                for rank, own in self._own.items()
                for group in own.values()
                if (ranks := self._ranks_of(rank, group.name, group.size)) is not None
            }
        )

    def groups_of(self, profile: RankProfile) -> tuple[GroupView, ...]:
        """The groups of a rank whose members are known."""
        own = self._own.get(profile.rank, {})
        found = (self._view(profile.rank, group.name, group.size, True) for group in own.values())
        return tuple(view for view in found if view is not None)

    def group_of(self, profile: RankProfile, arguments: CallArguments, aligned: bool) -> GroupView | None:
        """The group of a call; None if its members are not known.

        Args:
            profile: The rank's trace.
            arguments: What was called.
            aligned: Whether the call's position can be compared with those of other ranks.
        """
        key = (profile.rank, arguments.group, arguments.group_size, aligned)
        if key not in self._resolved:
            name = arguments.group
            if name is None:
                name = self._only_name(profile.rank, arguments.group_size)
            size = arguments.group_size
            self._resolved[key] = self._view(profile.rank, name, size, aligned) if name is not None else None
        return self._resolved[key]

    def _only_name(self, rank: int, size: int) -> str | None:
        """The name of the rank's group of a size, if it has no other one of this size; 0 for any size."""
        own = self._own.get(rank, {})
        found = [group for group in own.values() if not size or group.size == size]
        if len({group.ranks for group in found}) == 1:
            return found[0].name
        # A call in as many ranks as there are is in the default group, or does not differ from one that is.
        return "" if not found and size and size == self.world_size else None

    def _view(self, rank: int, name: str, size: int, aligned: bool) -> GroupView | None:
        ranks = self._ranks_of(rank, name, size)
        if ranks is None:
            return None
        view = self._views.get((name, ranks, aligned))
        if view is None:
            description = self._descriptions.get(
                name, DEFAULT_DESCRIPTION if ranks == self._everyone and not name else ""
            )
            group = GroupName(
                name, description, ranks, self._nth.get((name, ranks), 0), self._backends.get(name, ""), aligned
            )
            view = self._views[name, ranks, aligned] = GroupView(group.key, group, frozenset(ranks))
        return view

    def _ranks_of(self, rank: int, name: str, size: int) -> tuple[int, ...] | None:
        """The members of the group that a rank calls `name`; None if they are not known."""
        own = self._own.get(rank, {}).get(name)
        if own is not None and rank in own.ranks:
            return own.ranks
        size = size or (own.size if own is not None else 0)
        for ranks in self._members.get(name, ()):
            if rank in ranks and size in (0, len(ranks)):
                return ranks
        if size and size == self.world_size:
            return self._everyone
        users = self._users.get((name, size), set())
        if size == 1:
            return (rank,)
        return tuple(sorted(users)) if size and len(users) == size and rank in users else None
