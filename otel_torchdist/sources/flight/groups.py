"""The process groups of a job, as its dumps describe them.

A group is its name and its members: torch's names agree between members, and a library may use one name for several
groups. gloo's recorder does not say who the members are. Of the default group they are all ranks; of others, at least
the ranks that have recorded a call in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, GroupName
from otel_torchdist.sources.flight.dump import FlightDump, called_name

_UNDEFINED: Final = "undefined"
"""What torch writes as the description of a group that has none."""
_Identity = tuple[str, tuple[int, ...]]


class RecordedGroups:
    """Resolves the groups of a job's dumps."""

    def __init__(self, dumps: Iterable[FlightDump], world_size: int = 0) -> None:
        """Collect the groups.

        Args:
            dumps: Of all ranks of the job; entries may have been left out, if one of each group is there.
            world_size: Ranks of the job, if that is known from elsewhere; else 0.
        """
        used: dict[str, set[int]] = {}
        descriptions: dict[str, str] = {}
        backends: dict[str, str] = {}
        recorded: set[_Identity] = set()
        ranks: set[int] = set()
        seen: set[tuple[str, int]] = set()
        for dump in dumps:
            ranks.add(dump.rank)
            # By identity first: thousands of ranks share lists of thousands of members.
            fresh = [group for group in dump.groups.values() if (group.name, id(group.ranks)) not in seen]
            seen |= {(group.name, id(group.ranks)) for group in fresh}
            recorded |= {(group.name, group.ranks) for group in fresh if group.ranks}
            descriptions |= {group.name: group.description for group in dump.groups.values()}
            for entry in dump.entries:
                used.setdefault(entry.group, set()).add(dump.rank)
                descriptions.setdefault(entry.group, entry.description)
                backends.setdefault(entry.group, called_name(entry.profiling_name).library)
        highest = max([*ranks, *(member for _, members in recorded for member in members)], default=-1)
        self.world_size: Final = max(highest + 1, world_size)
        self._is_size_known = self.world_size == world_size
        self._descriptions = {name: "" if text == _UNDEFINED else text for name, text in descriptions.items()}
        self._backends = backends
        self._recorded = frozenset(recorded)
        everyone = tuple(range(self.world_size))
        self._inferred = {
            name: everyone if self._descriptions.get(name) == DEFAULT_DESCRIPTION else tuple(sorted(members))
            for name, members in used.items()
        }
        self._nth = numbers_of({*recorded, *self._inferred.items()})
        self._views: dict[tuple[_Identity, bool], GroupView] = {}
        self._by_object: dict[tuple[str, int, bool], tuple[tuple[int, ...], GroupView]] = {}

    def group(self, dump: FlightDump, name: str, aligned: bool = True) -> GroupView | None:
        """Return the group that a rank calls `name`; None if no rank has recorded anything about it.

        Args:
            dump: The rank's dump.
            name: torch's name.
            aligned: Whether its sequence numbers can be compared with those of other ranks.
        """
        identity = self._identity(dump, name)
        if identity is None:
            return None
        key = (identity[0], id(identity[1]), aligned)
        # With the members themselves, so that no other object can get their id.
        known = self._by_object.get(key) or self._by_object.setdefault(
            key, (identity[1], self._view(identity, aligned))
        )
        return known[1]

    def _identity(self, dump: FlightDump, name: str) -> _Identity | None:
        found = dump.groups.get(name)
        if found is not None and found.ranks:
            return found.name, found.ranks
        members = self._inferred.get(name)
        return (name, members) if members is not None else None

    def _view(self, identity: _Identity, aligned: bool) -> GroupView:
        view = self._views.get((identity, aligned))
        if view is None:
            name, ranks = identity
            description, backend = self._descriptions.get(name, ""), self._backends.get(name, "")
            is_whole = self._is_size_known and description == DEFAULT_DESCRIPTION
            group = GroupName(name, description, ranks, self._nth.get(identity, 0), backend, aligned)
            view = self._views[identity, aligned] = GroupView(
                group.key, group, frozenset(ranks), is_inferred=identity not in self._recorded and not is_whole
            )
        return view


def numbers_of(groups: set[_Identity]) -> Mapping[_Identity, int]:
    """Number groups with the same members, in the order in which torch named them."""
    counts: dict[tuple[int, ...], int] = {}
    numbers: dict[_Identity, int] = {}
    for name, ranks in sorted(groups, key=lambda group: (_natural(group[0]), group[1])):
        numbers[name, ranks] = counts.get(ranks, 0)
        counts[ranks] = numbers[name, ranks] + 1
    return numbers


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts `9` before `10`."""
    parts = re.findall(r"\d{1,18}|\D+", name)
    return tuple((int(part), "") if part.isdigit() and part.isascii() else (-1, part) for part in parts)


def names_by_id(dump: FlightDump) -> Mapping[int, str]:
    """By `pg_id`, the names of the groups in which a rank has made a call.

    `pg_id` is a number within the process, which only entries connect with a name. Where entries are gone, both sets
    ascend in the order in which the groups were created, so they fit if they are as many and no entry contradicts.
    """
    seen = {entry.pg_id: entry.group for entry in dump.entries}
    if len(dump.statuses) != len(dump.groups) or not all(name.isdecimal() for name in dump.groups):
        return seen
    by_order = dict(zip(sorted(dump.statuses), sorted(dump.groups, key=_natural), strict=True))
    return by_order if seen.items() <= by_order.items() else seen
