"""Counts the buckets of gradients that DDP reduces in one group, for both kernels; see `capture/labels/ddp.py`."""

from __future__ import annotations

import sys
import weakref
from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.capture.c10d.calls.message_parameters import MessageParameters, parameters_of_bucket
from otel_torchdist.model.names import LabelKind, LabelName, pack_label
from otel_torchdist.tape.layout import LABEL, LABEL_OFFSET

if TYPE_CHECKING:
    from otel_torchdist.capture.recorder import Recorder
    from otel_torchdist.native.recording import NativeGroup

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
