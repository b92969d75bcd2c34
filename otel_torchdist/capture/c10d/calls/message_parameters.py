"""Which parameters a message of DDP or FSDP holds, and in which order: asked for only where one has a bad value.

So nothing is kept up to date for it. The functions that are called here are private to torch; where one is missing, or
what it says does not add up to the message, no parameter is named.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import FrameType

    import torch

MAX_PARAMETER: Final = 300
"""Letters of a parameter's name."""
MAX_FRAMES: Final = 64
"""Frames that are looked at for FSDP's own."""
_OF_FSDP: Final = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
_COLLECTIVES: Final = frozenset({"foreach_all_gather", "foreach_reduce"})


@dataclass(frozen=True, slots=True)
class MessageParameters:
    """Parameters whose values, or gradients, lie one behind the other in a message, or in each rank's part of it.

    Attributes:
        names: Their names.
        lengths: How many elements each has there.
    """

    names: Sequence[str]
    lengths: Sequence[int]

    def at(self, offset: int) -> str:
        """The parameter that an element belongs to."""
        ends = tuple(accumulate(self.lengths))
        return self.names[bisect_right(ends, offset % ends[-1])]


def parameters_of_bucket(
    model: Any, place: int, sizes: Sequence[int], assigned: str, is_rebuilt: bool
) -> MessageParameters | None:
    """The parameters whose gradients are in a bucket of a model; None if that is not certain.

    Args:
        model: The `DistributedDataParallel`.
        place: The bucket's place among all.
        sizes: The sizes of all buckets, in bytes.
        assigned: The places of parameters in each bucket, as DDP writes them once it has rebuilt its buckets:
            `2 1, 0`; '' if it has not yet.
        is_rebuilt: Whether it has rebuilt them; it writes that down some steps later.
    """
    build = getattr(model, "_build_params_for_reducer", None)
    parameters: list[torch.Tensor] = build()[0] if build is not None else []
    if is_rebuilt:
        buckets = [[int(one) for one in bucket.split()] for bucket in assigned.split(",") if bucket.strip()]
    else:
        buckets = _first_buckets(parameters, sizes)
    if place >= len(buckets) or any(one >= len(parameters) for one in buckets[place]):
        return None
    inside = [parameters[one] for one in buckets[place]]
    if not inside or sum(one.nbytes for one in inside) != sizes[place]:
        return None
    known = {id(one): name for name, one in model.module.named_parameters()}
    return _parameters([known.get(id(one)) for one in inside], [one.numel() for one in inside])


def _first_buckets(parameters: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[list[int]]:
    """The buckets before they are rebuilt: parameters in the order of the model, the last ones in the first bucket."""
    if len({(one.dtype, one.device) for one in parameters}) > 1:
        return []  # there are buckets for each type
    buckets, rest = list[list[int]](), iter(range(len(parameters)))
    for size in reversed(sizes):
        bucket, left = list[int](), size
        while left > 0 and (place := next(rest, None)) is not None:
            bucket.append(place)
            left -= parameters[place].nbytes
        if left:
            return []
        buckets.insert(0, bucket)
    return buckets


def parameters_of_unit(elements: int, ranks: int) -> MessageParameters | None:
    """The parameters of the unit of `fully_shard` whose message is being sent by this thread; None if there is none.

    Each rank's part has the parts of all of the unit's parameters, padded to the same length on all ranks.

    Args:
        elements: How many elements the message has.
        ranks: How many ranks its group has.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # as `inspect` would call it
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_name in _COLLECTIVES and frame.f_globals.get("__name__") == _OF_FSDP:
            return _parameters_of(frame.f_locals.get("fsdp_params") or (), elements, ranks)
        frame = frame.f_back
    return None


def _parameters_of(unit: Iterable[Any], elements: int, ranks: int) -> MessageParameters | None:
    parameters = tuple(unit)
    if not all(hasattr(one, "padded_sharded_param_size") for one in parameters):
        return None
    lengths = [int(one.padded_sharded_param_size.numel()) for one in parameters]
    if elements not in (sum(lengths), ranks * sum(lengths)):
        return None
    return _parameters([getattr(one, "_param_fqn", None) for one in parameters], lengths)


def _parameters(names: Sequence[str | None], lengths: Sequence[int]) -> MessageParameters | None:
    shown = [name[:MAX_PARAMETER] for name in names if name]
    is_whole = len(shown) == len(lengths) and sum(lengths) > 0
    return MessageParameters(shown, lengths) if is_whole else None
