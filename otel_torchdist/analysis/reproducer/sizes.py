"""Chooses the script's tensor sizes, and substitutes for operations, types and reduce ops that gloo lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.analysis.reproducer.rank_mapping import RankMapping
from otel_torchdist.analysis.reproducer.script import ScriptCall
from otel_torchdist.analysis.reproducer.tails import Event
from otel_torchdist.model.calls import OperationId, OperationView
from otel_torchdist.model.collectives import EXCHANGES, operations_where
from otel_torchdist.model.kinds import Flag, RecordKind

_BY_LENGTH: Final = {
    1: ("uint8", "int8", "bool"),
    2: ("float16", "bfloat16"),
    4: ("float32", "int32"),
    8: ("float64", "int64", "complex64"),
    16: ("complex128",),
}
"""Types that gloo's collectives support, by bytes. 16-bit integers and most unsigned integers are missing."""
_LENGTHS: Final = {
    **{name: length for length, names in _BY_LENGTH.items() for name in names},
    **{"int16": 2, "uint16": 2, "uint32": 4, "uint64": 8},
}
_REDUCE_OPS: Final = ("sum", "max", "min", "product")
"""gloo has `avg` only in the newest versions of torch, and bitwise reduce ops only for integers."""
_NEAREST: Final = {
    "all_gather_coalesced": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_to_all": "all_to_all_single",
    "gather_into_tensor": "gather",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
}
"""gloo coalesces only `all_reduce`, gathers only into lists, and exchanges only lists of equal tensors."""
_FALLBACKS: Final = ("barrier", "all_reduce", "broadcast")
"""Substitutes for operations whose own substitute is taken. Distinct operations need distinct substitutes."""


def bytes_of(dtype: str) -> int:
    """Return the bytes of an element; 1 for unknown types, which mostly have eight bits."""
    return _LENGTHS.get(dtype, 1)


def operation_substitutes(used: Iterable[str], known: frozenset[str]) -> dict[str, str]:
    """Map the job's operations to the script's: the same operation, the nearest one, or a barrier."""
    return _replaced(used, known, lambda name: [_NEAREST.get(name, "barrier"), *_FALLBACKS])


def dtype_substitutes(used: Iterable[str]) -> dict[str, str]:
    """Map the job's types to the script's: the same type, or a type of the same length."""
    known = frozenset(name for names in _BY_LENGTH.values() for name in names)
    return _replaced(used, known, lambda name: _BY_LENGTH[bytes_of(name)])


def reduce_op_substitutes(used: Iterable[str]) -> dict[str, str]:
    """Map the job's reduce ops to the script's."""
    return _replaced(used, frozenset(("", *_REDUCE_OPS)), lambda name: _REDUCE_OPS)


def _replaced(used: Iterable[str], known: frozenset[str], candidates: Callable[[str], Sequence[str]]) -> dict[str, str]:
    """Replace unknown names by their first unused candidate, else by their first candidate."""
    names = {*used}
    chosen = {name: name for name in sorted(names & known)}
    for name in sorted(names - known):
        possible = [candidate for candidate in candidates(name) if candidate in known]
        chosen[name] = next((candidate for candidate in possible if candidate not in chosen.values()), possible[0])
    return chosen


Shape = tuple[int, ...]

MAX_BYTES: Final = 1 << 30
"""Upper bound on the tensors of all ranks together, in bytes."""
PARTED: Final = operations_where(lambda row: row.describes_parts)
"""Operations whose signature describes a tensor with a part for each member."""
_FOR_EACH_MEMBER: Final = operations_where(
    lambda row: row.describes_share or (row.family.has_output_parts and not row.family.has_input_parts)
)
"""Operations with a tensor for each member besides the tensor in the signature."""


@dataclass(frozen=True, slots=True)
class ScriptSizes:
    """The reduction of tensor sizes.

    Attributes:
        factor: Approximate factor; 1 if sizes are unchanged.
        elements: Maps numbers of elements in the job to numbers in the script. Distinct numbers stay distinct.
    """

    factor: int
    elements: Mapping[int, int]

    def of(self, shape: Shape) -> Shape:
        """Return the shape in the script: the same, or flat and smaller."""
        count = math.prod(shape)
        smaller = self.elements.get(count, count)
        return shape if smaller == count else (smaller,)


def sizes_for(ranks: Iterable[Sequence[ScriptCall]]) -> ScriptSizes:
    """Choose sizes so that the script stays below `MAX_BYTES`.

    Args:
        ranks: The calls of each rank, with the job's shapes; for `PARTED` operations, the shape of one part.
    """
    calls = [list(of_rank) for of_rank in ranks]
    needed = sum(_peak(of_rank) for of_rank in calls)
    factor = -(-needed // MAX_BYTES)
    if factor <= 1:
        return ScriptSizes(1, {})
    elements: dict[int, int] = {}
    last = 0
    for count in sorted({math.prod(shape) for of_rank in calls for call in of_rank for shape in call.shapes} - {0}):
        elements[count] = last = max(last + 1, count // factor)
    return ScriptSizes(factor, elements)


def _peak(calls: Sequence[ScriptCall]) -> int:
    """Return the peak bytes of a rank. Synchronous calls free their tensors."""
    pending = sum(_bytes(call) for call in calls if call.work)
    return pending + max((_bytes(call) for call in calls), default=0)


def _bytes(call: ScriptCall) -> int:
    described = sum(math.prod(shape) * bytes_of(dtype) for shape, dtype in zip(call.shapes, call.dtypes, strict=True))
    size = len(call.group.ranks)
    if call.is_uneven:
        return described
    if call.operation in PARTED or call.operation in EXCHANGES:
        return 2 * size * described
    return (size + 1) * described if call.operation in _FOR_EACH_MEMBER else described


ALL_TO_ALL_LISTS: Final = "all_to_all"
"""The exchange of lists of tensors; `all_to_all_single` exchanges parts of one tensor."""
_DEFAULT_ITEM_BYTES: Final = 4
"""Bytes of an element whose type is not recorded: `float32` is assumed."""


@dataclass(frozen=True, slots=True)
class ExchangedParts:
    """The parts that a rank exchanges with the members that have a rank in the script, in rank order.

    Attributes:
        sent: Shapes of the parts sent to each member.
        received: Shapes of the parts received from each member.
    """

    sent: tuple[Shape, ...]
    received: tuple[Shape, ...]


class UnevenExchanges:
    """The uneven exchanges among the last calls of ranks.

    Attributes:
        has_uneven_lists: Whether a call exchanges lists of tensors of different sizes, which gloo does not support.
        are_unknown: Whether the split sizes of a call are not recorded.
    """

    def __init__(self, tails: Mapping[int, Sequence[Event]], mapping: RankMapping) -> None:
        """Index the exchanges.

        Args:
            tails: The last calls of the job's ranks that have a rank in the script.
            mapping: The mapping between the job's ranks and the script's ranks.
        """
        self._mapping = mapping
        self._calls: dict[OperationId, dict[int, OperationView]] = {}
        for rank, tail in tails.items():
            for view in (event.operation for event in tail):
                if view.name in EXCHANGES and view.operation_id.channel.kind is RecordKind.OPERATION:
                    self._calls.setdefault(view.operation_id, {})[rank] = view
        uneven = [view for calls in self._calls.values() for view in calls.values() if view.record.flags & Flag.UNEVEN]
        self.has_uneven_lists = any(view.name == ALL_TO_ALL_LISTS and _has_all_splits(view) for view in uneven)
        self.are_unknown = any(not _has_all_splits(view) for view in uneven)

    def parts(self, rank: int, view: OperationView) -> ExchangedParts | None:
        """Return the parts of a call, or None if no rank is known to split it unevenly.

        A rank receives the parts that the others send. From ranks without a recorded call, such as absent ranks, it
        receives even shares of the remaining bytes.

        Args:
            rank: The job's rank that makes the call.
            view: The call.
        """
        calls = self._calls.get(view.operation_id, {})
        if view.group is None or rank not in view.group.members or not any(map(_has_all_splits, calls.values())):
            return None
        members = sorted(view.group.members)
        sent = {sender: _sent(call, len(members)) for sender, call in calls.items()}
        place = members.index(rank)
        received = {sender: parts[place] for sender, parts in sent.items()}
        unknown = len(members) - len(received)
        share = max(_received(view) - sum(received.values()), 0) // unknown if unknown else 0
        kept = [member for member in members if self._mapping.script_rank(member) is not None]
        return ExchangedParts(
            _shapes(view, [sent[rank][members.index(member)] for member in kept]),
            _shapes(view, [received.get(member, share) for member in kept]),
        )


def _has_all_splits(view: OperationView) -> bool:
    splits, group = view.record.splits, view.group
    return splits is not None and group is not None and len(splits.sent) == len(group.members)


def _sent(view: OperationView, members: int) -> tuple[int, ...]:
    """Return the elements that a rank sends to each member."""
    splits = view.record.splits
    if splits is not None and len(splits.sent) == members:
        return tuple(part // _item(view) for part in splits.sent)
    return (view.record.message_bytes // _item(view) // members,) * members


def _received(view: OperationView) -> int:
    """Return the elements that a rank receives from all members together."""
    splits = view.record.splits
    return (splits.received if splits is not None else view.record.message_bytes) // _item(view)


def _item(view: OperationView) -> int:
    names = view.signature.dtypes if view.signature is not None else ()
    return bytes_of(names[0]) if names else _DEFAULT_ITEM_BYTES


def _shapes(view: OperationView, elements: Sequence[int]) -> tuple[Shape, ...]:
    """Return shapes of parts with these numbers of elements: in rows of the call's tensor, or flat."""
    shapes = view.signature.shapes if view.signature is not None else ()
    row_shape = tuple(shapes[0][1:]) if shapes and view.name != ALL_TO_ALL_LISTS else ()
    row = math.prod(row_shape)
    if row <= 0 or any(count % row for count in elements):
        return tuple((count,) for count in elements)
    return tuple((count // row, *row_shape) for count in elements)
