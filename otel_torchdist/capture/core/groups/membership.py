"""Derives the members of a reconfigured group from the handle that each member provides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_HANDLE: Final = re.compile(r"[^:]+:(\d+):(-?\d+):")
"""A member's handle from the backend: its previous rank (-1 if it had none), and the membership of that rank."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group from now on.

    Attributes:
        epoch: The id that the members agreed on.
        ranks: Global ranks by rank in the group; 0 to size - 1 if unknown.
        is_known: Whether the global ranks are known.
        group_rank: This rank's rank in the group; -1 if unknown.
    """

    epoch: int
    ranks: tuple[int, ...]
    is_known: bool
    group_rank: int


def find_membership(before: Sequence[int], own_handle: str, handles: Sequence[str], epoch: int) -> Membership:
    """Parse the handles, with the same result on all members.

    If the handles come from different memberships, as after a replacement, the global ranks are unknown on all members:
    rank 1 of one membership means nothing to members of another.

    Args:
        before: Global ranks of the previous members, by rank in the group.
        own_handle: This rank's handle.
        handles: All handles, by rank in the new group.
        epoch: The id of the new membership.
    """
    previous = [match.groups() if (match := _HANDLE.match(handle)) else ("-1", handle) for handle in handles]
    previous_ranks = [int(rank) for rank, _ in previous]
    is_same = len({membership for _, membership in previous}) == 1
    is_unique = len(set(previous_ranks)) == len(previous_ranks)
    is_known = is_same and is_unique and all(0 <= rank < len(before) for rank in previous_ranks)
    group_rank = list(handles).index(own_handle) if own_handle in handles else -1
    ranks = tuple(before[rank] for rank in previous_ranks) if is_known else tuple(range(len(previous_ranks)))
    return Membership(epoch, ranks, is_known, group_rank)
