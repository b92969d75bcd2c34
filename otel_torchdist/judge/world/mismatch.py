"""Detects ranks that made different calls at the same position of a group.

Some differences are legal: `all_to_all` and `all_gather` take tensors of different sizes from each rank. So only values
that torch requires to be equal on every rank of that operation are compared; in an exchange, the size that a rank sends
is compared with the size that its peer expects.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from otel_torchdist.judge.world.divergence import Divergence, divergence_of
from otel_torchdist.judge.world.part_sizes import Misfit, find_message_misfit, find_misfit
from otel_torchdist.model.calls import UNREAD, Arrival, Channel, OperationId
from otel_torchdist.model.collectives import ROOTED, SizeRule, operations_where
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.snapshot import RankView


class Field(enum.Enum):
    """The property in which calls differ. The value is also the value of the span attribute."""

    OPERATION = "operation"
    DTYPE = "dtype"
    SHAPE = "shape"
    REDUCE_OP = "reduce op"
    ROOT = "root"
    PARTS = "split sizes"
    """A rank sends a size that its peer does not expect."""
    GROUP_NAME = "group name"
    MEMBERS = "group members"
    """Ranks created groups of different members under the same number."""
    DIMENSIONS = "dimensions"
    """Different dimensions with the same number of elements. Backends accept them, so no rank hangs."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Ranks whose calls disagree.

    Attributes:
        operation_id: The first operation at which they disagree.
        field: The property that differs.
        operation: Name of the call made by the largest party.
        parties: Each value with its ranks, ascending; the largest party first. For split sizes, the receiver and the
            sender of `misfit`.
        misfit: The sizes that do not fit; None for other fields.
        divergence: The call paths of the parties; None if unknown.
    """

    operation_id: OperationId
    field: Field
    operation: str
    parties: tuple[tuple[str, tuple[int, ...]], ...]
    misfit: Misfit | None = None
    divergence: Divergence | None = None

    @property
    def has_majority(self) -> bool:
        """Whether one party is larger than every other."""
        return len(self.parties[0][1]) > len(self.parties[1][1])

    def may_change(self, more: int) -> bool:
        """Return whether the minority could change when `more` ranks (at least one) have made their call."""
        return 0 < more >= len(self.parties[0][1]) - len(self.parties[1][1])

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks in the minority, ascending; all ranks if there is no majority."""
        if self.misfit is not None:
            return self.misfit.ranks
        named = self.parties[1:] if self.has_majority else self.parties
        return tuple(sorted(rank for _, ranks in named for rank in ranks))


_ANY_SIZE: Final = operations_where(lambda row: row.sizes is not SizeRule.EQUAL)
_SAME_DIMENSIONS: Final = operations_where(
    lambda row: (
        row.family.moves_data
        and not row.family.is_message
        and row.has_input_everywhere
        and row.sizes is not SizeRule.PER_PAIR
    )
)
"""Operations that combine or concatenate the tensors of all ranks."""


def find_mismatches(views: Iterable[RankView], operation_id: OperationId) -> Iterator[Mismatch]:
    """Yield the mismatches in a channel, up to `operation_id`, in order.

    Args:
        views: The members that report.
        operation_id: The operation that does not end. For sends and receives, only sizes are compared.
    """
    channel = operation_id.channel
    views = tuple(views)
    members, by_position = _members(views, channel), _calls_by_position(views, channel)
    for sequence, calls in sorted(by_position.items()):
        if sequence <= operation_id.sequence:
            position = OperationId(channel, sequence)
            if channel.is_point_to_point:
                mismatch = _compare_message(calls, position, views)
            else:
                mismatch = compare(calls, position) or _compare_parts(calls, position, members)
            if mismatch is not None:
                yield _with_divergence(mismatch, by_position)


def find_difference(views: Collection[RankView], channel: Channel, dimensions: bool) -> Mismatch | None:
    """Return the first mismatch of a channel where the calls of all ranks are known; see `compare_strictly`."""
    by_position, members = _calls_by_position(views, channel), _members(views, channel)
    complete = (
        (calls, OperationId(channel, sequence))
        for sequence, calls in sorted(by_position.items())
        if len(calls) == len(views)
    )
    differences = (
        compare_strictly(calls, position, dimensions) or _compare_parts(calls, position, members)
        for calls, position in complete
    )
    return next((_with_divergence(mismatch, by_position) for mismatch in differences if mismatch is not None), None)


def _members(views: Iterable[RankView], channel: Channel) -> tuple[int, ...]:
    """Return the global ranks of a channel's group, in its order; empty if unknown."""
    groups = (view.groups.get(channel.group) for view in views)
    return next((group.name.ranks for group in groups if group is not None), ())


def _compare_parts(arrivals: Mapping[int, Arrival], at: OperationId, members: Sequence[int]) -> Mismatch | None:
    """Compare the sizes that ranks send each other with the expected sizes; None if all known sizes fit."""
    sizes = {rank: arrival.parts for rank, arrival in arrivals.items() if arrival.parts is not None}
    misfit = find_misfit(members, sizes) if len(sizes) > 1 else None
    return _mismatch_of_sizes(misfit, arrivals, at) if misfit is not None else None


def _compare_message(arrivals: Mapping[int, Arrival], at: OperationId, views: Collection[RankView]) -> Mismatch | None:
    """Compare the size of a message with the receiver's size; None if they fit or are unknown.

    gloo accepts messages smaller than the receiver's buffer, and programs rely on that.
    """
    sender, receiver = at.channel.source, at.channel.destination
    if sender not in arrivals or receiver not in arrivals:
        return None
    misfit = find_message_misfit(sender, receiver, arrivals[sender].signature, arrivals[receiver].signature)
    group = next((view.groups[at.channel.group] for view in views if at.channel.group in view.groups), None)
    takes_less = group is None or "gloo" in group.name.backend
    if misfit is None or (takes_less and misfit.sent < misfit.expected):
        return None
    return _mismatch_of_sizes(misfit, arrivals, at)


def _mismatch_of_sizes(misfit: Misfit, arrivals: Mapping[int, Arrival], at: OperationId) -> Mismatch:
    expects = f"expects {misfit.expected:,} bytes from rank {misfit.sender}", (misfit.receiver,)
    sends = f"sends {misfit.sent:,} bytes to rank {misfit.receiver}", (misfit.sender,)
    operation = _signature(arrivals[misfit.sender]).operation
    return Mismatch(at, Field.PARTS, operation, (expects, sends), misfit)


def _with_divergence(mismatch: Mismatch, by_position: Mapping[int, Mapping[int, Arrival]]) -> Mismatch:
    until = mismatch.operation_id.sequence
    return with_divergence(mismatch, [by_position[sequence] for sequence in sorted(by_position) if sequence <= until])


def with_divergence(mismatch: Mismatch, history: Sequence[Mapping[int, Arrival]]) -> Mismatch:
    """Return a mismatch with the lines that made the calls, where known.

    Args:
        mismatch: The mismatch.
        history: Calls by rank at each position, up to the position of the mismatch.
    """
    divergence = divergence_of(history, mismatch.parties)
    return (
        replace(mismatch, divergence=divergence)
        if any(side.site is not None for side in divergence.sides)
        else mismatch
    )


def _calls_by_position(views: Iterable[RankView], channel: Channel) -> dict[int, dict[int, Arrival]]:
    by_position: dict[int, dict[int, Arrival]] = {}
    for view in views:
        for sequence, arrival in _arrivals(view, channel).items():
            by_position.setdefault(sequence, {})[view.rank] = arrival
    return by_position


def _arrivals(view: RankView, channel: Channel) -> dict[int, Arrival]:
    progress = view.progress.get(channel)
    if progress is None or not progress.aligned:
        return {}
    return {arrival.sequence: arrival for arrival in progress.recent}


def comparable(arrival: Arrival) -> tuple[object, ...]:
    """Return all properties of a call that must be equal on every rank."""
    if arrival.signature is None:
        return ()
    return (*(value_of(arrival) for value_of in _VALUES.values()), *_dimensions(arrival))


def compare(arrivals: Mapping[int, Arrival], operation_id: OperationId) -> Mismatch | None:
    """Return the first difference between calls at one position that can block ranks; None if they agree.

    Args:
        arrivals: The calls made there, by rank.
        operation_id: The position.
    """
    known = _known(arrivals)
    if len({(arrival.signature, arrival.root) for arrival in known.values()}) < 2:
        return None  # the usual case, detected without formatting text for each rank
    for field, value_of in _VALUES.items():
        described = {
            rank: call for rank, call in sorted(known.items()) if field is not Field.SHAPE or _has_shapes(call)
        }
        mismatch = _split(field, {rank: value_of(call) for rank, call in described.items()}, known, operation_id)
        if mismatch is not None:
            return mismatch
    return None


def compare_strictly(
    arrivals: Mapping[int, Arrival], operation_id: OperationId, dimensions: bool = True
) -> Mismatch | None:
    """Return the first difference between calls at one position that may corrupt results; None if they agree.

    This includes different shapes with the same number of dimensions and elements: one rank has transposed its tensor.
    A different number of dimensions is not included: one rank has flattened its tensor, which is usual.

    Args:
        arrivals: The calls made there, by rank.
        operation_id: The position.
        dimensions: Whether dimensions are compared as well.
    """
    mismatch = compare(arrivals, operation_id)
    if mismatch is not None or not dimensions:
        return mismatch
    alike: dict[tuple[tuple[int, int], ...], dict[int, str]] = {}
    known = _known(arrivals)
    for rank, arrival in sorted(known.items()):
        shapes = _dimensions(arrival)
        sizes = tuple((len(shape), math.prod(shape)) for shape in shapes)
        alike.setdefault(sizes, {})[rank] = ", ".join(map(_order, shapes))
    candidates = (_split(Field.DIMENSIONS, values, known, operation_id) for values in alike.values())
    return next((candidate for candidate in candidates if candidate is not None), None)


def _known(arrivals: Mapping[int, Arrival]) -> dict[int, Arrival]:
    return {rank: arrival for rank, arrival in arrivals.items() if arrival.signature is not None}


def _split(
    field: Field, values: Mapping[int, str], known: Mapping[int, Arrival], operation_id: OperationId
) -> Mismatch | None:
    """Group ranks by value; None if all have the same value."""
    parties: dict[str, list[int]] = {}
    for rank, value in values.items():
        if value != UNREAD:
            parties.setdefault(value, []).append(rank)
    if len(parties) < 2:
        return None
    ordered = sorted(parties.items(), key=lambda party: (-len(party[1]), party[1]))
    operation = _signature(known[ordered[0][1][0]]).operation
    return Mismatch(operation_id, field, operation, tuple((text, tuple(ranks)) for text, ranks in ordered))


def _has_shapes(arrival: Arrival) -> bool:
    """Return whether shapes are known. Ranks omit them, at different times, to keep their dictionary small."""
    signature = _signature(arrival)
    return bool(signature.shapes) or not signature.tensors


def _operation(arrival: Arrival) -> str:
    return _signature(arrival).operation


def _dtype(arrival: Arrival) -> str:
    return ", ".join(_signature(arrival).dtypes) or "none"


def _shape(arrival: Arrival) -> str:
    """Return shapes as element counts: backends do not distinguish shapes of the same size."""
    signature = _signature(arrival)
    if signature.operation in _ANY_SIZE and not arrival.wants_one_size:
        return "any"
    elements = [math.prod(shape) for shape in signature.shapes]
    more = f" and {signature.tensors - len(elements)} more" if signature.tensors > len(elements) else ""
    return ", ".join(f"{count:,} elements" if count != 1 else "1 element" for count in elements) + more or "none"


def _dimensions(arrival: Arrival) -> tuple[tuple[int, ...], ...]:
    signature = _signature(arrival)
    return signature.shapes if signature.operation in _SAME_DIMENSIONS else ()


def _order(shape: tuple[int, ...]) -> str:
    """Format the dimensions that determine where an element is stored: `1x32` and `32x1` are equal."""
    return "x".join(str(size) for size in shape if size != 1) or "1"


def _reduce_op(arrival: Arrival) -> str:
    return _signature(arrival).reduce_op or "none"


def _root(arrival: Arrival) -> str:
    is_rooted = arrival.root >= 0 and _signature(arrival).operation in ROOTED
    return f"rank {arrival.root}" if is_rooted else "none"


def _signature(arrival: Arrival) -> SignatureName:
    assert arrival.signature is not None
    return arrival.signature


def _value_of(field: Field) -> Callable[[Arrival], str] | None:
    """Return the function that formats a field of a call; None for fields compared in another way."""
    match field:
        case Field.OPERATION:
            return _operation
        case Field.DTYPE:
            return _dtype
        case Field.SHAPE:
            return _shape
        case Field.REDUCE_OP:
            return _reduce_op
        case Field.ROOT:
            return _root
        case Field.PARTS | Field.GROUP_NAME | Field.MEMBERS | Field.DIMENSIONS:
            return None


_VALUES: Final = {field: value_of for field in Field if (value_of := _value_of(field)) is not None}
"""In order of significance: a difference in one field makes later fields incomparable. Different operations have
different shapes."""
