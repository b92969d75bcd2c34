"""Finds ranks that have come to the same place of a group with different calls.

Some differences are legal: `all_to_all` and `all_gather` take tensors of different sizes from each rank. What is
compared must therefore be alike for that operation on every rank that follows torch's rules.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.stall.world import Arrival, Lane, RankView, Site
from otel_torchdist.tape.records import SignatureName


class Field(enum.Enum):
    """What differs; the value is the attribute's."""

    OPERATION = "operation"
    DTYPE = "dtype"
    SHAPE = "shape"
    REDUCE_OP = "reduce op"
    ROOT = "root"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks that disagree.

    Attributes:
        site: Where they disagree first.
        field: What they disagree about.
        operation: What the largest party has entered.
        parties: What is said there and by which ranks, ascending; the largest party first.
    """

    site: Site
    field: Field
    operation: str
    parties: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def has_majority(self) -> bool:
        """Whether one party is larger than every other."""
        return len(self.parties[0][1]) > len(self.parties[1][1])

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those in the minority, ascending; all, where there is no majority."""
        named = self.parties[1:] if self.has_majority else self.parties
        return tuple(sorted(rank for _, ranks in named for rank in ranks))


_ANY_SIZE: Final = frozenset(
    {"all_gather", "all_gather_coalesced", "all_to_all", "all_to_all_single", "reduce_scatter"}
)
"""Each rank may bring a tensor of its own size."""
_ROOTED: Final = frozenset({"broadcast", "gather", "reduce", "scatter"})


def find_mismatch(views: Iterable[RankView], site: Site, of_all: bool = False) -> Mismatch | None:
    """The first place of a lane, up to `site`, at which ranks are seen to disagree.

    Args:
        views: The members that report.
        site: The operation that does not end. Sends and receives are not compared.
        of_all: Look only at places of which it is known what all of them called there.
    """
    if site.lane.is_point_to_point:
        return None
    arrivals = {view.rank: _arrivals(view, site.lane) for view in views}
    places = sorted({sequence for of in arrivals.values() for sequence in of if sequence <= site.sequence})
    for sequence in places:
        here = {rank: of[sequence] for rank, of in arrivals.items() if sequence in of}
        if of_all and len(here) < len(arrivals):
            continue
        found = compare(here, Site(site.lane, sequence))
        if found is not None:
            return found
    return None


def _arrivals(view: RankView, lane: Lane) -> dict[int, Arrival]:
    progress = view.progress.get(lane)
    if progress is None or not progress.aligned:
        return {}
    return {arrival.sequence: arrival for arrival in progress.recent}


def comparable(arrival: Arrival) -> tuple[str, ...]:
    """All that must be alike on every rank."""
    if arrival.signature is None:
        return ()
    return tuple(value_of(arrival) for value_of in _VALUES.values())


def compare(arrivals: Mapping[int, Arrival], site: Site) -> Mismatch | None:
    """What ranks disagree about at one place, None when they agree.

    Args:
        arrivals: What each rank has entered there.
        site: The place.
    """
    known = {rank: arrival for rank, arrival in arrivals.items() if arrival.signature is not None}
    if len({(arrival.signature, arrival.root) for arrival in known.values()}) < 2:
        return None  # the usual case, told from the others without a word for each rank
    for field, value_of in _VALUES.items():
        parties: dict[str, list[int]] = {}
        for rank, arrival in sorted(known.items()):
            if field is Field.SHAPE and not _has_shapes(arrival):
                continue
            parties.setdefault(value_of(arrival), []).append(rank)
        if len(parties) > 1:
            ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
            largest = known[ordered[0][1][0]].signature
            operation = largest.operation if largest is not None else ""
            return Mismatch(site, field, operation, tuple((text, tuple(ranks)) for text, ranks in ordered))
    return None


def _has_shapes(arrival: Arrival) -> bool:
    """Whether shapes are known: they are left out where they would fill a rank's dictionary, not on all at once."""
    signature = _signature(arrival)
    return bool(signature.shapes) or not signature.tensors


def _operation(arrival: Arrival) -> str:
    return _signature(arrival).operation


def _dtype(arrival: Arrival) -> str:
    return ", ".join(_signature(arrival).dtypes) or "none"


def _shape(arrival: Arrival) -> str:
    """Shapes as people write them; alike for tensors of as many elements, which backends do not tell apart."""
    signature = _signature(arrival)
    if signature.operation in _ANY_SIZE:
        return "any"
    elements = [math.prod(shape) for shape in signature.shapes]
    more = f" and {signature.tensors - len(elements)} more" if signature.tensors > len(elements) else ""
    return ", ".join(f"{count:,} elements" if count != 1 else "1 element" for count in elements) + more or "none"


def _reduce_op(arrival: Arrival) -> str:
    return _signature(arrival).reduce_op or "none"


def _root(arrival: Arrival) -> str:
    is_rooted = arrival.root >= 0 and _signature(arrival).operation in _ROOTED
    return f"rank {arrival.root}" if is_rooted else "none"


def _signature(arrival: Arrival) -> SignatureName:
    assert arrival.signature is not None
    return arrival.signature


_VALUES: Final[Mapping[Field, Callable[[Arrival], str]]] = {
    Field.OPERATION: _operation,
    Field.DTYPE: _dtype,
    Field.SHAPE: _shape,
    Field.REDUCE_OP: _reduce_op,
    Field.ROOT: _root,
}
"""How to say what a rank has entered. Earlier ones make later ones meaningless: another operation has other shapes."""
