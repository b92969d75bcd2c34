"""The buckets of gradients that DDP reduces, counted for both kernels, and the parameters that a message holds.

See `capture/parts/ddp.py`. Parameters are asked for only where a message has a bad value.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable, MutableSequence, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_torchdist.model.names import LabelKind, LabelName, pack_label
from otel_torchdist.tape.layout import LABEL, LABEL_OFFSET

if TYPE_CHECKING:
    from types import FrameType

    import torch

    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.native.recording import NativeGroup

MAX_PARAMETER: Final = 300
"""Letters of a parameter's name."""
MAX_FRAMES: Final = 64
"""Frames that are looked at for FSDP's own."""
_OF_FSDP: Final = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
_COLLECTIVES: Final = frozenset({"foreach_all_gather", "foreach_reduce"})


class MessageParameters(NamedTuple):
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


MAX_BUCKETS: Final = 4096
_LOST: Final = -1
"""The next bucket once a call has come that was out of turn."""
_SIZE: Final = 8
"""Bytes of the message's size, with which the constant part of a record begins."""
_LABEL_END: Final = LABEL_OFFSET + LABEL.size


def labelled(tail: bytes, word: int) -> bytes:
    """The constant part of a record with the label of one call."""
    return tail[:LABEL_OFFSET] + LABEL.pack(word) + tail[_LABEL_END:]


class Buckets:
    """The buckets of the model whose gradients a group reduces; of several such models none is counted.

    Attributes:
        label: Name id of the label of their calls.
    """

    def __init__(self, recorder: Recorder, native: NativeGroup | None) -> None:
        """Count in a group whose buckets are not known yet, and inform the native library, if there is one."""
        self.label = recorder.label(LabelName(LabelKind.DDP))
        self._native = native
        self._sizes: tuple[int, ...] = ()
        self._next: MutableSequence[int] = [0] if native is None else native.next_bucket()
        self._model: weakref.ref[Any] | None = None
        self._is_shared = False
        self._assigned = ""
        self._is_rebuilt = False
        self._parameters: dict[int, MessageParameters | None] = {}

    def is_of(self, model: Any) -> bool:
        """Whether this model's buckets are known, or several models share the group."""
        return self._is_shared or (self._model is not None and self._model() is model)

    def learn(self, model: Any, sizes: Sequence[int], assigned: str = "", is_rebuilt: bool = False) -> None:
        """Learn a model's buckets, and begin with the first one.

        Args:
            model: The model.
            sizes: Their sizes, in bytes.
            assigned: The parameters in them; see `parameters_of_bucket`.
            is_rebuilt: Whether they are no longer those that it began with.
        """
        self._assigned, self._is_rebuilt = assigned, is_rebuilt
        self._parameters.clear()
        other = self._model() if self._model is not None else None
        self._is_shared = self._is_shared or (other is not None and other is not model)
        self._model = weakref.ref(model)
        known = tuple(sizes) if not self._is_shared and len(sizes) <= MAX_BUCKETS else ()
        if known != self._sizes:
            self._sizes = known
            if self._native is not None:
                self._native.set_buckets(self.label, known)
        self.begin()

    def begin(self) -> None:
        """The first bucket comes next."""
        self._next[0] = 0

    def parameters_of_next(self, size: int) -> MessageParameters | None:
        """The parameters in the bucket whose turn it is, if that is certain, and a message of this size is that."""
        place = self._next[0]
        model = self._model() if self._model is not None else None
        if model is None or not 0 <= place < len(self._sizes) or self._sizes[place] != size:
            return None
        if place not in self._parameters:
            self._parameters[place] = parameters_of_bucket(model, place, self._sizes, self._assigned, self._is_rebuilt)
        return self._parameters[place]

    def put_label(self, tail: bytes) -> bytes:
        """The constant part of the record of a call in a backward pass, with its bucket if that is certain.

        `piece_of` in native/source/plans.cc does the same.
        """
        size = int.from_bytes(tail[:_SIZE], sys.byteorder)
        place = self._next[0]
        if 0 <= place < len(self._sizes) and self._sizes[place] == size:
            self._next[0] = place + 1
            return labelled(tail, pack_label(self.label, place + 1)) if self.label else tail
        if size in self._sizes:
            self._next[0] = _LOST
        return tail
