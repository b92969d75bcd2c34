"""Measures the imbalance of `all_to_all` between the members of a group: with experts, the imbalance of their work.

On the way to the experts, members differ in the bytes they receive; on the way back, in the bytes they send. So each
exchange is judged by the side with the larger differences.
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
"""Upper bound on the compared exchanges of a group. The newest are kept."""


class Imbalance(msgspec.Struct, frozen=True):
    """The imbalance of a group over the exchanges that are known on all members.

    Attributes:
        members: The members of the group.
        rank: The member with the most bytes over all exchanges. Each exchange counts by bytes received or
            bytes sent, whichever differ more between members.
        ratio: Bytes of that member divided by the mean of all members.
        exchanges: Number of compared exchanges.
        typical_ratio: Largest bytes of a member divided by the mean, in the median exchange.
    """

    members: tuple[int, ...]
    rank: int
    ratio: float
    exchanges: int
    typical_ratio: float


class _Sizes:
    """Bytes that one rank sent and received in exchanges, with their sequences."""

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
    """The exchanges of data between a set of members, over all of its groups."""

    _by_group: dict[str, dict[int, _Sizes]] = field(default_factory=dict[str, dict[int, _Sizes]])

    def add(self, group: str, rank: int, sequence: int, sent: int, received: int | None) -> None:
        """Add a call.

        Args:
            group: Key of the group.
            rank: The calling rank.
            sequence: Position in the group.
            sent: Bytes that the rank sent.
            received: Bytes that the rank received. If None, for unknown, the call is skipped.
        """
        if received is not None:
            self._by_group.setdefault(group, {}).setdefault(rank, _Sizes()).add(sequence, sent, received)

    def imbalance(self, members: tuple[int, ...]) -> Imbalance | None:
        """Compare the members, or return None if no exchange is known on all of them."""
        totals: Counter[int] = Counter()
        ratios: list[float] = []
        for sides in self._complete(len(members)):
            ratio, sizes = max(((_ratio(side), side) for side in sides), key=lambda pair: pair[0])
            if ratio:
                totals.update(sizes)
                ratios.append(ratio)
        if not ratios:
            return None
        busiest = max(sorted(totals), key=lambda rank: totals[rank])
        return Imbalance(members, busiest, totals[busiest] * len(totals) / totals.total(), len(ratios), median(ratios))

    def _complete(self, members: int) -> Iterator[tuple[dict[int, int], dict[int, int]]]:
        """Yield the bytes that each member received and sent in each exchange known on all members."""
        for by_rank in self._by_group.values():
            if len(by_rank) < max(members, 2):
                continue
            places = {rank: sizes.places() for rank, sizes in by_rank.items()}
            common = sorted(set[int].intersection(*(set(sequences) for sequences in places.values())))
            for sequence in common[-MAX_COMPARED:]:
                exchange = {rank: (by_rank[rank], sequences[sequence]) for rank, sequences in places.items()}
                yield (
                    {rank: sizes.received[place] for rank, (sizes, place) in exchange.items()},
                    {rank: sizes.sent[place] for rank, (sizes, place) in exchange.items()},
                )


def _ratio(sizes: Mapping[int, int]) -> float:
    """Return the largest size divided by the mean; 0 if all are 0."""
    total = sum(sizes.values())
    return max(sizes.values()) * len(sizes) / total if total else 0.0


def worst(imbalances: Iterable[Imbalance | None]) -> Imbalance | None:
    """Return the largest imbalance, or None if there is none."""
    known = (imbalance for imbalance in imbalances if imbalance is not None)
    return max(known, key=lambda imbalance: imbalance.typical_ratio, default=None)
