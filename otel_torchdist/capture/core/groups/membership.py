"""Derives the members of a group that has just been reconfigured from the handle that each member provides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_HANDLE: Final = re.compile(r"[^:]+:(\d+):(-?\d+):")
"""A backend's handle of one member: its rank so far, and the membership in which it has that rank; -1 if in none."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group from now on.

    Attributes:
        epoch: The id that its members have agreed on.
        ranks: Global ranks by rank in the group; 0 to size - 1 if they are not known.
        is_known: Whether the global ranks are known.
        group_rank: This rank's rank in the group; -1 if it is not known.
    """

    epoch: int
    ranks: tuple[int, ...]
    is_known: bool
    group_rank: int


def find_membership(before: Sequence[int], own: str, handles: Sequence[str], epoch: int) -> Membership:
    """Read the handles, with the same result on all members.

    Global ranks are unknown if the handles come from different memberships, as after a replacement: what one member
    calls rank 1 means nothing to members that were not in its group. Then they count as unknown on all members.

    Args:
        before: Global ranks of the members so far, by rank in the group.
        own: This rank's handle.
        handles: All handles, by rank in the new group.
        epoch: The id of the new membership.
    """
    found = [match.groups() if (match := _HANDLE.match(handle)) else ("-1", handle) for handle in handles]
    places = [int(rank) for rank, _ in found]
    is_one = len({membership for _, membership in found}) == 1
    is_known = is_one and len(set(places)) == len(places) and all(0 <= place < len(before) for place in places)
    group_rank = list(handles).index(own) if own in handles else -1
    ranks = tuple(before[place] for place in places) if is_known else tuple(range(len(places)))
    return Membership(epoch, ranks, is_known, group_rank)
