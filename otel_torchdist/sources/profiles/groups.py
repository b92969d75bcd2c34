"""The process groups of a job, from all its traces together.

A trace names the groups of its rank with their members. But lists of more than 30 ranks are truncated, and older
traces have only names or sizes. Other traces fill the gaps: if the number of ranks that use a group equals its size,
these ranks are its members.
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
        """Collect the groups of all traces. Calls are not kept."""
        self._by_rank: dict[int, dict[str, ProfiledGroup]] = {}
        self._members: dict[str, set[tuple[int, ...]]] = {}
        self._users: dict[tuple[str, int], set[int]] = {}
        self._descriptions: dict[str, str] = {}
        self._backends: dict[str, str] = {}
        highest = -1
        world_size = 0
        for profile in profiles:
            by_name = self._by_rank.setdefault(profile.rank, {})
            world_size = max(world_size, profile.world_size)
            highest = max(highest, profile.rank)
            for group in profile.groups:
                if group.name not in by_name or len(group.ranks) > len(by_name[group.name].ranks):
                    by_name[group.name] = group
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
                for rank, by_name in self._by_rank.items()
                for group in by_name.values()
                if (ranks := self._ranks_of(rank, group.name, group.size)) is not None
            }
        )

    def groups_of(self, profile: RankProfile) -> tuple[GroupView, ...]:
        """Return the groups of a rank with known members."""
        by_name = self._by_rank.get(profile.rank, {})
        views = (self._view(profile.rank, group.name, group.size, True) for group in by_name.values())
        return tuple(view for view in views if view is not None)

    def group_of(self, profile: RankProfile, arguments: CallArguments, aligned: bool) -> GroupView | None:
        """Return the group of a call; None if its members are unknown.

        Args:
            profile: The rank's trace.
            arguments: The arguments of the call.
            aligned: Whether the call's position is comparable between ranks.
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
        """Return the name of the rank's only group of a size (0 for any size); None if there are several or none."""
        groups = self._by_rank.get(rank, {}).values()
        candidates = [group for group in groups if not size or group.size == size]
        if len({group.ranks for group in candidates}) == 1:
            return candidates[0].name
        # A group of all ranks is the default group, or has the same members.
        return "" if not candidates and size and size == self.world_size else None

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
        """Return the members of a rank's group; None if unknown."""
        group = self._by_rank.get(rank, {}).get(name)
        if group is not None and rank in group.ranks:
            return group.ranks
        size = size or (group.size if group is not None else 0)
        for ranks in self._members.get(name, ()):
            if rank in ranks and size in (0, len(ranks)):
                return ranks
        if size and size == self.world_size:
            return self._everyone
        users = self._users.get((name, size), set())
        if size == 1:
            return (rank,)
        return tuple(sorted(users)) if size and len(users) == size and rank in users else None
