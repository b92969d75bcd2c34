"""The process groups of a run, and the progress of their members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.calls import Channel, GroupView, Progress
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import compress_ranks
from otel_torchdist.show.live.texts import shown, shown_group

MAX_GROUPS: Final = 64
MAX_RANKS_TEXT: Final = 60


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A process group.

    Attributes:
        key: Eight hex digits, the same on all members.
        name: Its purpose.
        backend: Name of its backend.
        members: Its ranks, such as `0-7,16`.
        size: Number of its ranks.
        seen: Number of its ranks that this agent observes.
        first: The newest collective that all observed members have entered.
        last: The newest collective that any of them has entered.
        ended: The newest collective known to have ended on all of them.
        behind: The members whose newest collective is `first`; '' if that is true of all members, or if their calls
            are not comparable.
        stalled: Whether one of its operations is stalled.
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
    """Describe the groups of a run: a stalled group first, then by decreasing size.

    Args:
        world: The ranks.
        stalled: Key of the group with the stalled operation; '' for none.

    Returns:
        The rows, and the number of groups left out.
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
    """Return the groups of a rank. The view of a rank on another node also lists other groups of that node."""
    return ((key, group) for key, group in view.groups.items() if view.rank in group.members)


def _row(group: GroupView, seen: list[RankView], stalled: bool) -> GroupRow:
    channel = Channel(RecordKind.OPERATION, group.key)
    progress = {view.rank: view.progress.get(channel, _NO_PROGRESS) for view in seen}
    first, last = _bounds(rank.entered for rank in progress.values())
    ended, _ = _bounds(rank.completed for rank in progress.values())
    is_comparable = group.name.aligned and all(rank.aligned for rank in progress.values())
    behind = [rank for rank, reached in progress.items() if reached.entered == first]
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


_NO_PROGRESS: Final = Progress()


def _bounds(numbers: Iterable[int]) -> tuple[int, int]:
    sequence_numbers = list(numbers)
    return min(sequence_numbers, default=0), max(sequence_numbers, default=0)
