"""Who belongs to a group whose members have just changed, from what each of them says of itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_HANDLE: Final = re.compile(r"[^:]+:(\d+):(-?\d+):")
"""A backend's handle of one member: its rank so far, and the membership in which it has that; -1 where in none."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Who belongs to a group from now on.

    Attributes:
        epoch: The id that its members have agreed on.
        ranks: Global ranks by rank in the group; 0 to size - 1 where they are not known.
        is_known: Whether they are.
        group_rank: This rank's own place among them; -1 where it is not known.
    """

    epoch: int
    ranks: tuple[int, ...]
    is_known: bool
    group_rank: int


def find_membership(before: Sequence[int], own: str, handles: Sequence[str], epoch: int) -> Membership:
    """Read the handles, as all members do alike.

    Ranks that come from different memberships, as when one is replaced, are not known: what one of them calls rank 1
    says nothing to those who were not there. Then none of them claims to know.

    Args:
        before: Global ranks of the members so far, by rank in the group.
        own: This rank's handle.
        handles: All of them, by rank in the group to come.
        epoch: The id of the membership to come.
    """
    found = [match.groups() if (match := _HANDLE.match(handle)) else ("-1", handle) for handle in handles]
    places = [int(rank) for rank, _ in found]
    is_one = len({membership for _, membership in found}) == 1
    is_known = is_one and len(set(places)) == len(places) and all(0 <= place < len(before) for place in places)
    group_rank = list(handles).index(own) if own in handles else -1
    ranks = tuple(before[place] for place in places) if is_known else tuple(range(len(places)))
    return Membership(epoch, ranks, is_known, group_rank)
