"""Counts the gradient buckets that DDP reduces, for both kernels, and finds the parameters in a message.

See `capture/parts/ddp.py`. The parameters of a message are only determined if it contains a non-finite value.
"""

from __future__ import annotations

import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable, MutableSequence, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_torchdist.capture.upstream import training
from otel_torchdist.model.names import LabelKind, LabelName, pack_label
from otel_torchdist.tape.layout import LABEL, LABEL_OFFSET

if TYPE_CHECKING:
    from types import FrameType

    import torch

    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.native.recording import NativeGroup

MAX_PARAMETER: Final = 300
"""Maximum length of a parameter's name."""
MAX_FRAMES: Final = 64
"""Maximum number of frames that are searched for the function in which FSDP communicates."""
_FSDP_MODULE: Final = training.UNIT_GATHER.module
_COLLECTIVES: Final = frozenset({training.UNIT_GATHER.name, training.UNIT_SCATTER.name})


class MessageParameters(NamedTuple):
    """The parameters in a message or in each rank's part of it, in the order of their elements.

    Attributes:
        names: Their names.
        lengths: Number of elements of each parameter.
    """

    names: Sequence[str]
    lengths: Sequence[int]

    def at(self, offset: int) -> str:
        """Return the name of the parameter at an element."""
        ends = tuple(accumulate(self.lengths))
        return self.names[bisect_right(ends, offset % ends[-1])]


def parameters_of_bucket(
    model: Any, index: int, sizes: Sequence[int], assigned: str, is_rebuilt: bool
) -> MessageParameters | None:
    """Return the parameters in a gradient bucket of a model, or None if uncertain.

    Args:
        model: The `DistributedDataParallel`.
        index: Index of the bucket.
        sizes: Sizes of all buckets, in bytes.
        assigned: Indices of the parameters in each bucket, as DDP logs them once it has rebuilt its buckets:
            `2 1, 0`. '' before that.
        is_rebuilt: Whether DDP has rebuilt the buckets. It logs them some steps later.
    """
    build = training.DDP_BUILD.of(model)
    parameters: list[torch.Tensor] = build()[0] if build is not None else []
    if is_rebuilt:
        buckets = [[int(index) for index in bucket.split()] for bucket in assigned.split(",") if bucket.strip()]
    else:
        buckets = _first_buckets(parameters, sizes)
    if index >= len(buckets) or any(position >= len(parameters) for position in buckets[index]):
        return None
    members = [parameters[position] for position in buckets[index]]
    if not members or sum(parameter.nbytes for parameter in members) != sizes[index]:
        return None
    names = {id(parameter): name for name, parameter in model.module.named_parameters()}
    return _message_parameters([names.get(id(member)) for member in members], [member.numel() for member in members])


def _first_buckets(parameters: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[list[int]]:
    """Return DDP's initial buckets: parameters in the order of the model, with the last ones in the first bucket."""
    if len({(parameter.dtype, parameter.device) for parameter in parameters}) > 1:
        return []  # each type has its own buckets
    buckets, remaining = list[list[int]](), iter(range(len(parameters)))
    for size in reversed(sizes):
        bucket, missing_bytes = list[int](), size
        while missing_bytes > 0 and (index := next(remaining, None)) is not None:
            bucket.append(index)
            missing_bytes -= parameters[index].nbytes
        if missing_bytes:
            return []
        buckets.insert(0, bucket)
    return buckets


def parameters_of_unit(elements: int, ranks: int) -> MessageParameters | None:
    """Return the parameters of the `fully_shard` unit that this thread communicates for, or None.

    Each rank's part of the message holds its shards of all of the unit's parameters, padded to the same length on all
    ranks.

    Args:
        elements: Number of elements of the message.
        ranks: Size of its group.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # `inspect` uses it, too
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_name in _COLLECTIVES and frame.f_globals.get("__name__") == _FSDP_MODULE:
            return _parameters_of(frame.f_locals.get("fsdp_params") or (), elements, ranks)
        frame = frame.f_back
    return None


def _parameters_of(unit: Iterable[Any], elements: int, ranks: int) -> MessageParameters | None:
    parameters = tuple(unit)
    if not all(hasattr(parameter, "padded_sharded_param_size") for parameter in parameters):
        return None
    lengths = [int(parameter.padded_sharded_param_size.numel()) for parameter in parameters]
    if elements not in (sum(lengths), ranks * sum(lengths)):
        return None
    return _message_parameters([training.UNIT_PARAMETER.of(parameter) for parameter in parameters], lengths)


def _message_parameters(names: Sequence[str | None], lengths: Sequence[int]) -> MessageParameters | None:
    cut_names = [name[:MAX_PARAMETER] for name in names if name]
    is_complete = len(cut_names) == len(lengths) and sum(lengths) > 0
    return MessageParameters(cut_names, lengths) if is_complete else None


MAX_BUCKETS: Final = 4096
_OUT_OF_ORDER: Final = -1
"""Index of the next bucket after a call out of order: unknown until the next forward."""
_SIZE: Final = 8
"""Bytes of the message size, the first field of the constant part of a record."""
_LABEL_END: Final = LABEL_OFFSET + LABEL.size


def with_label(tail: bytes, word: int) -> bytes:
    """Return the constant part of a record, with a call's label."""
    return tail[:LABEL_OFFSET] + LABEL.pack(word) + tail[_LABEL_END:]


class Buckets:
    """The gradient buckets of the model that a group reduces. If several models share the group, none is counted.

    Attributes:
        label: Name id of the label of the calls.
    """

    def __init__(self, recorder: Recorder, native: NativeGroup | None) -> None:
        """Initialize without known buckets. `native` is the group in the native library, if it is in use."""
        self.label = recorder.intern_label(LabelName(LabelKind.DDP))
        self._native = native
        self._sizes: tuple[int, ...] = ()
        self._next: MutableSequence[int] = [0] if native is None else native.next_bucket()
        self._model: weakref.ref[Any] | None = None
        self._is_shared = False
        self._assigned = ""
        self._is_rebuilt = False
        self._parameters: dict[int, MessageParameters | None] = {}

    def knows(self, model: Any) -> bool:
        """Return whether this model's buckets are known, or not needed because several models share the group."""
        return self._is_shared or (self._model is not None and self._model() is model)

    def learn(self, model: Any, sizes: Sequence[int], assigned: str = "", is_rebuilt: bool = False) -> None:
        """Learn a model's buckets, and start over with the first bucket.

        Args:
            model: The model.
            sizes: Sizes of the buckets, in bytes.
            assigned: See `parameters_of_bucket`.
            is_rebuilt: Whether DDP has rebuilt its initial buckets.
        """
        self._assigned, self._is_rebuilt = assigned, is_rebuilt
        self._parameters.clear()
        previous = self._model() if self._model is not None else None
        self._is_shared = self._is_shared or (previous is not None and previous is not model)
        self._model = weakref.ref(model)
        counted = tuple(sizes) if not self._is_shared and len(sizes) <= MAX_BUCKETS else ()
        if counted != self._sizes:
            self._sizes = counted
            if self._native is not None:
                self._native.set_buckets(self.label, counted)
        self.restart()

    def restart(self) -> None:
        """Start over with the first bucket."""
        self._next[0] = 0

    def parameters_of_next(self, size: int) -> MessageParameters | None:
        """Return the parameters in the next bucket, or None if uncertain or if its size differs from the message's."""
        index = self._next[0]
        model = self._model() if self._model is not None else None
        if model is None or not 0 <= index < len(self._sizes) or self._sizes[index] != size:
            return None
        if index not in self._parameters:
            self._parameters[index] = parameters_of_bucket(model, index, self._sizes, self._assigned, self._is_rebuilt)
        return self._parameters[index]

    def put_label(self, tail: bytes) -> bytes:
        """Add the bucket to the constant part of the record of a call in a backward pass, if the bucket is certain.

        `bucket_number_of` in native/source/plans.cc does the same.
        """
        size = int.from_bytes(tail[:_SIZE], sys.byteorder)
        index = self._next[0]
        if 0 <= index < len(self._sizes) and self._sizes[index] == size:
            self._next[0] = index + 1
            return with_label(tail, pack_label(self.label, index + 1)) if self.label else tail
        if size in self._sizes:
            self._next[0] = _OUT_OF_ORDER
        return tail
