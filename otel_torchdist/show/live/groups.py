"""The process groups of a run, and how far their members have come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import Channel, GroupView, Progress
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.naming import compress_ranks
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.show.live.texts import shown, shown_group

MAX_GROUPS: Final = 64
MAX_RANKS_TEXT: Final = 60


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group.

    Attributes:
        key: Eight hex digits, the same on all members.
        name: What it is for.
        backend: Name of its backend.
        members: Its ranks, such as `0-7,16`.
        size: How many they are.
        seen: How many of them are seen here.
        first: The newest collective that all members that are seen have entered.
        last: The newest collective that any of them has entered.
        ended: The newest collective that has ended on all of them, as far as that is known.
        behind: The members that are at `first`; '' if all are at the same one, or are not comparable.
        stalled: Whether an operation of it is held up.
    """

    key: str
    name: str
    backend: str
    members: str
    size: int
    seen: int
    first: int
    last: int
    ended: int
    behind: str
    stalled: bool


def group_rows(world: WorldSnapshot, stalled: str) -> tuple[tuple[GroupRow, ...], int]:
    """Describe the groups of a run: one that is held up first, then the largest.

    Args:
        world: The ranks.
        stalled: Key of the group whose operation is held up; '' for none.

    Returns:
        The rows, and the number of groups that were left out for lack of room.
    """
    members: dict[str, list[RankView]] = {}
    groups: dict[str, GroupView] = {}
    for view in world.in_order:
        for key, group in _groups_of(view):
            groups.setdefault(key, group)
            members.setdefault(key, []).append(view)
    ordered = sorted(groups, key=lambda key: (key != stalled, -len(groups[key].members), min(groups[key].members)))
    rows = tuple(_row(groups[key], members[key], key == stalled) for key in ordered[:MAX_GROUPS])
    return rows, len(ordered) - len(rows)


def _groups_of(view: RankView) -> Iterator[tuple[str, GroupView]]:
    """Return the groups of which a rank is a member; ranks of other nodes list those of their node."""
    return ((key, group) for key, group in view.groups.items() if view.rank in group.members)


def _row(group: GroupView, seen: list[RankView], stalled: bool) -> GroupRow:
    channel = Channel(RecordKind.OPERATION, group.key)
    progress = {view.rank: view.progress.get(channel, _NOTHING) for view in seen}
    first, last = _bounds(one.entered for one in progress.values())
    ended, _ = _bounds(one.completed for one in progress.values())
    is_comparable = group.name.aligned and all(one.aligned for one in progress.values())
    behind = [rank for rank, one in progress.items() if one.entered == first]
    return GroupRow(
        key=group.key,
        name=shown_group(group),
        backend=shown(group.name.backend),
        members=compress_ranks(group.members, MAX_RANKS_TEXT),
        size=len(group.members),
        seen=len(seen),
        first=first,
        last=last,
        ended=ended,
        behind=compress_ranks(behind, MAX_RANKS_TEXT) if is_comparable and first < last else "",
        stalled=stalled,
    )


_NOTHING: Final = Progress()


def _bounds(numbers: Iterable[int]) -> tuple[int, int]:
    found = list(numbers)
    return min(found, default=0), max(found, default=0)
