"""Sizes of tensors in the script: those of the job, unless they would need too much memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from otel_torchdist.model.collectives import EXCHANGES, operations_where
from otel_torchdist.reproducer.model import ScriptCall
from otel_torchdist.reproducer.planning.substitutes import bytes_of

Shape = tuple[int, ...]

MOST_BYTES: Final = 1 << 30
"""All tensors of all ranks at the same time."""
PARTED: Final = operations_where(lambda row: row.describes_parts)
"""Operations described by a tensor that has a part for each member."""
_FOR_EACH_MEMBER: Final = operations_where(
    lambda row: row.describes_share or (row.family.has_output_parts and not row.family.has_input_parts)
)
"""Operations that have a tensor for each member besides the one that describes them."""


@dataclass(frozen=True, slots=True)
class ScriptSizes:
    """How tensors are made smaller.

    Attributes:
        factor: By how much, about; 1 if they are left as they are.
        elements: By number of elements in the job, that in the script; different ones stay different.
    """

    factor: int
    elements: Mapping[int, int]

    def of(self, shape: Shape) -> Shape:
        """The shape in the script: the same, or flat and smaller."""
        count = math.prod(shape)
        smaller = self.elements.get(count, count)
        return shape if smaller == count else (smaller,)


def sizes_for(ranks: Iterable[Sequence[ScriptCall]]) -> ScriptSizes:
    """Choose sizes so that the script stays below `MOST_BYTES`.

    Args:
        ranks: The calls of each rank, with the shapes of the job; of `PARTED` operations, those of one part.
    """
    calls = [list(one) for one in ranks]
    needed = sum(_peak(one) for one in calls)
    factor = -(-needed // MOST_BYTES)
    if factor <= 1:
        return ScriptSizes(1, {})
    elements: dict[int, int] = {}
    last = 0
    for count in sorted({math.prod(shape) for one in calls for call in one for shape in call.shapes} - {0}):
        elements[count] = last = max(last + 1, count // factor)
    return ScriptSizes(factor, elements)


def _peak(calls: Sequence[ScriptCall]) -> int:
    """Bytes that a rank needs at most: a synchronous call frees its tensors."""
    pending = sum(_bytes(call) for call in calls if call.work)
    return pending + max((_bytes(call) for call in calls), default=0)


def _bytes(call: ScriptCall) -> int:
    own = sum(math.prod(shape) * bytes_of(dtype) for shape, dtype in zip(call.shapes, call.dtypes, strict=True))
    size = len(call.group.ranks)
    if call.is_uneven:
        return own
    if call.operation in PARTED or call.operation in EXCHANGES:
        return 2 * size * own
    return (size + 1) * own if call.operation in _FOR_EACH_MEMBER else own
