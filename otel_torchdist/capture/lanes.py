"""Where a group's operations are counted.

Ranks compare how far they have come by these numbers, so they have to be counted as the backend orders them. A group
with a backend for each device type (`cpu:gloo,cuda:nccl`) has two orders that know nothing of each other: while one
thread trains on CUDA, another gathers a checkpoint's plan on the CPU, at another moment on each rank.
"""

from __future__ import annotations

from collections import Counter


class Lane:
    """The operations of one group that one backend carries out.

    Attributes:
        name_id: The group's id in the dictionary.
        rank: This rank's global number.
        sequence: Collectives issued so far.
        point_to_point: Operations so far by (source, destination, tag).
    """

    __slots__ = ("name_id", "point_to_point", "rank", "sequence")

    def __init__(self, name_id: int, rank: int) -> None:
        """Nothing has been issued."""
        self.name_id = name_id
        self.rank = rank
        self.sequence = 0
        self.point_to_point: Counter[tuple[int, int, int]] = Counter()

    def count_point_to_point(self, is_send: bool, peer: int, tag: int) -> int:
        """Count one operation among those with the same source, destination and tag; returns its place, from 1."""
        key = (self.rank, peer, tag) if is_send else (peer, self.rank, tag)
        self.point_to_point[key] += 1
        return self.point_to_point[key]

    def uncount_point_to_point(self, is_send: bool, peer: int, tag: int) -> None:
        """Take one count back: the operation was refused."""
        self.point_to_point[(self.rank, peer, tag) if is_send else (peer, self.rank, tag)] -= 1
