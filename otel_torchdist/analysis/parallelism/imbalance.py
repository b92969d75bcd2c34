"""How unevenly the members of a group take part in `all_to_all`: with experts, how unevenly these have work.

On the way to the experts, members differ in what they receive; on the way back, in what they send. So each exchange is
judged by the side on which they differ more.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import msgspec

from otel_torchdist.tape.layout import MAX_NUMBER

MAX_COMPARED: Final = 1_024
"""Exchanges of a group that are compared, the newest ones."""


class Imbalance(msgspec.Struct, frozen=True):
    """How unevenly the members of a group take part in exchanges, of those that are known of all of them.

    Attributes:
        members: The members of the group.
        rank: The member with most bytes in all exchanges together, received or sent, where members differ more.
        ratio: Its bytes, by the mean of all members.
        exchanges: Number of exchanges that are compared.
        typical_ratio: In the median exchange, the bytes of the member with most in it, by the mean.
    """

    members: tuple[int, ...]
    rank: int
    ratio: float
    exchanges: int
    typical_ratio: float


class _Sizes:
    """What one rank sent and received in exchanges, by their sequence."""

    __slots__ = ("received", "sent", "sequences")

    def __init__(self) -> None:
        self.sequences = array("q")
        self.sent = array("q")
        self.received = array("q")

    def add(self, sequence: int, sent: int, received: int) -> None:
        columns = self.sequences, self.sent, self.received
        for column, value in zip(columns, (sequence, sent, received), strict=True):
            column.append(min(value, MAX_NUMBER))
            if len(column) >= 2 * MAX_COMPARED:
                del column[:MAX_COMPARED]

    def places(self) -> dict[int, int]:
        return {sequence: place for place, sequence in enumerate(self.sequences)}


@dataclass(slots=True)
class Exchanges:
    """The exchanges of data of a set of members, in however many groups."""

    _by_group: dict[str, dict[int, _Sizes]] = field(default_factory=dict[str, dict[int, _Sizes]])

    def add(self, group: str, rank: int, sequence: int, sent: int, received: int | None) -> None:
        """Add a call.

        Args:
            group: Key of its group.
            rank: The rank that called.
            sequence: Its position in the group.
            sent: Bytes that the rank sent.
            received: Bytes that it received; None if unknown: then the call is left out.
        """
        if received is not None:
            self._by_group.setdefault(group, {}).setdefault(rank, _Sizes()).add(sequence, sent, received)

    def imbalance(self, members: tuple[int, ...]) -> Imbalance | None:
        """Compare the members; None if no exchange is known of all of them."""
        totals: Counter[int] = Counter()
        ratios: list[float] = []
        for sides in self._complete(len(members)):
            ratio, sizes = max(((_ratio(side), side) for side in sides), key=lambda one: one[0])
            if ratio:
                totals.update(sizes)
                ratios.append(ratio)
        if not ratios:
            return None
        busiest = max(sorted(totals), key=lambda rank: totals[rank])
        return Imbalance(members, busiest, totals[busiest] * len(totals) / totals.total(), len(ratios), median(ratios))

    def _complete(self, members: int) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
        """Yield what each member received, and what it sent, in one exchange after the other."""
        for by_rank in self._by_group.values():
            if len(by_rank) < max(members, 2):
                continue
            places = {rank: sizes.places() for rank, sizes in by_rank.items()}
            common = sorted(set[int].intersection(*(set(of) for of in places.values())))
            for sequence in common[-MAX_COMPARED:]:
                here = {rank: (by_rank[rank], of[sequence]) for rank, of in places.items()}
                yield (
                    {rank: sizes.received[place] for rank, (sizes, place) in here.items()},
                    {rank: sizes.sent[place] for rank, (sizes, place) in here.items()},
                )


def _ratio(sizes: Mapping[int, int]) -> float:
    """The largest size by the mean; 0 if all are 0."""
    total = sum(sizes.values())
    return max(sizes.values()) * len(sizes) / total if total else 0.0


def worst(found: Iterable[Imbalance | None]) -> Imbalance | None:
    """The largest imbalance among those of groups that are for the same."""
    return max((one for one in found if one is not None), key=lambda one: one.typical_ratio, default=None)
