"""The process groups of a job, from its dumps.

Name and members together identify a group: torch's names agree between members, but a library may reuse a name.
gloo's recorder does not record the members. They are inferred: all ranks for the default group, otherwise the ranks
that recorded a call in the group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.names import DEFAULT_DESCRIPTION, GroupName
from otel_torchdist.sources.flight.dump import FlightDump, parse_profiling_name

_UNDEFINED: Final = "undefined"
"""torch's description of a group without a description."""
_Identity = tuple[str, tuple[int, ...]]


class RecordedGroups:
    """Resolves the groups of a job's dumps."""

    def __init__(self, dumps: Iterable[FlightDump], world_size: int = 0) -> None:
        """Collect the groups.

        Args:
            dumps: The dumps of all ranks of the job, with at least one entry of each group that was used.
            world_size: Ranks of the job if known from elsewhere, otherwise 0.
        """
        users: dict[str, set[int]] = {}
        descriptions: dict[str, str] = {}
        backends: dict[str, str] = {}
        recorded: set[_Identity] = set()
        ranks: set[int] = set()
        seen: set[tuple[str, int]] = set()
        for dump in dumps:
            ranks.add(dump.rank)
            # Compare identities first: thousands of ranks share lists of thousands of members.
            new_groups = [group for group in dump.groups.values() if (group.name, id(group.ranks)) not in seen]
            seen |= {(group.name, id(group.ranks)) for group in new_groups}
            recorded |= {(group.name, group.ranks) for group in new_groups if group.ranks}
            descriptions |= {group.name: group.description for group in dump.groups.values()}
            for entry in dump.entries:
                users.setdefault(entry.group, set()).add(dump.rank)
                descriptions.setdefault(entry.group, entry.description)
                backends.setdefault(entry.group, parse_profiling_name(entry.profiling_name).library)
        highest = max([*ranks, *(member for _, members in recorded for member in members)], default=-1)
        self.world_size: Final = max(highest + 1, world_size)
        self._is_size_known = self.world_size == world_size
        self._descriptions = {name: "" if text == _UNDEFINED else text for name, text in descriptions.items()}
        self._backends = backends
        self._recorded = frozenset(recorded)
        everyone = tuple(range(self.world_size))
        self._inferred = {
            name: everyone if self._descriptions.get(name) == DEFAULT_DESCRIPTION else tuple(sorted(members))
            for name, members in users.items()
        }
        self._nth = numbers_of({*recorded, *self._inferred.items()})
        self._views: dict[tuple[_Identity, bool], GroupView] = {}
        # Groups by name and identity of the member list, which is faster than hashing thousands of members.
        self._by_object: dict[tuple[str, int, bool], tuple[tuple[int, ...], GroupView]] = {}

    def group(self, dump: FlightDump, name: str, aligned: bool = True) -> GroupView | None:
        """Return a group of a rank; None if its members are neither recorded nor inferred.

        Args:
            dump: The rank's dump.
            name: torch's name of the group.
            aligned: Whether its sequence numbers are comparable between ranks.
        """
        identity = self._identity(dump, name)
        if identity is None:
            return None
        key = (identity[0], id(identity[1]), aligned)
        # The entry keeps the members alive, so that no other object can get their id.
        entry = self._by_object.get(key) or self._by_object.setdefault(
            key, (identity[1], self._view(identity, aligned))
        )
        return entry[1]

    def _identity(self, dump: FlightDump, name: str) -> _Identity | None:
        recorded = dump.groups.get(name)
        if recorded is not None and recorded.ranks:
            return recorded.name, recorded.ranks
        members = self._inferred.get(name)
        return (name, members) if members is not None else None

    def _view(self, identity: _Identity, aligned: bool) -> GroupView:
        view = self._views.get((identity, aligned))
        if view is None:
            name, ranks = identity
            description, backend = self._descriptions.get(name, ""), self._backends.get(name, "")
            has_all_ranks = self._is_size_known and description == DEFAULT_DESCRIPTION
            group = GroupName(name, description, ranks, self._nth.get(identity, 0), backend, aligned)
            view = self._views[identity, aligned] = GroupView(
                group.key, group, frozenset(ranks), is_inferred=identity not in self._recorded and not has_all_ranks
            )
        return view


def numbers_of(groups: set[_Identity]) -> Mapping[_Identity, int]:
    """Number the groups with equal members, in the order of their names."""
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
    """Return the names of a rank's groups by `pg_id`.

    `pg_id` is a number within the process. Only entries connect it with a name. If the entries of a group were
    overwritten, numbers and names are paired by order, since both ascend in order of creation. They are paired only if
    their counts are equal and no entry contradicts.
    """
    recorded = {entry.pg_id: entry.group for entry in dump.entries}
    if len(dump.statuses) != len(dump.groups) or not all(name.isdecimal() for name in dump.groups):
        return recorded
    by_order = dict(zip(sorted(dump.statuses), sorted(dump.groups, key=_natural), strict=True))
    return by_order if recorded.items() <= by_order.items() else recorded
