"""Records the values of operations' tensors: which are not finite, and statistics of a sample of the operations.

Members of a group look at the same operations, without a word between them: the choice depends on nothing but the
operation's sequence, and large messages are chosen more rarely. Nothing is held, copied or synchronised, no random
numbers are drawn, and no gradient is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from otel_torchdist import guard
from otel_torchdist.capture.observers.statistics import checksum_of, described, extremes_of, format_of, moments_of
from otel_torchdist.config import NumericsMode
from otel_torchdist.tape.layout import How
from otel_torchdist.tape.numerics import NumericsFlag, NumericsWord, checksum_word, float_word, pack_numerics

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.call import Channel, GroupState
    from otel_torchdist.capture.observers.hooks import OperationCall

_SUMS: Final = frozenset({"", "sum", "avg", "premul_sum"})
"""Reduce ops whose inputs should be finite; MIN and MAX are often given infinities to start with. '' where this torch
does not show it."""
_ADDS: Final = frozenset({"all_reduce", "all_reduce_coalesced", "reduce"})
_SCATTERS: Final = "reduce_scatter"
_SENDS: Final = frozenset({"send", "broadcast", "gather", "gather_into_tensor", "all_to_all", "all_to_all_single"})
_GATHERS: Final = "all_gather"
_EQUAL: Final = frozenset({"all_reduce", "all_reduce_coalesced", "broadcast"})
"""Operations, besides all gathers, whose outputs must be equal on all members."""
_HASH: Final = 0x9E3779B1
_ROOM: Final = 1 << 32
BYTES_PER_SAMPLE: Final = 1 << 20
"""Of messages of this size one in `every` is sampled, of larger ones as many bytes."""


def is_chosen(sequence: int, every: int, size: int) -> bool:
    """Whether an operation is sampled: the same on every member, and spread evenly over steps of any length.

    Args:
        sequence: Its sequence.
        every: One in so many.
        size: Bytes of its tensors.
    """
    return (sequence * _HASH) % _ROOM < _ROOM // (every * max(1, size // BYTES_PER_SAMPLE))


def has_values(operation: str, reduce_op: str) -> bool:
    """Whether an operation sends values that should be finite."""
    if operation in _ADDS or operation.startswith(_SCATTERS):
        return reduce_op in _SUMS
    return operation in _SENDS or operation.startswith(_GATHERS)


def makes_equal(operation: str) -> bool:
    """Whether an operation leaves equal outputs on all members."""
    return operation in _EQUAL or operation.startswith(_GATHERS)


@dataclass(frozen=True, slots=True)
class NumericsObserver:
    """Looks at tensors before operations, and at those of a sample after them.

    Attributes:
        mode: What is looked at.
        every: One in so many operations is sampled.
    """

    mode: NumericsMode
    every: int

    def before(
        self,
        call: OperationCall,
        group: GroupState,
        channel: Channel,
        tag: int,
        thread: int,
        inputs: Sequence[torch.Tensor],
    ) -> Callable[[OperationCall], object] | None:
        """Record what the inputs of an operation are like.

        Args:
            call: The operation.
            group: Its group.
            channel: Its channel.
            tag: Its tag.
            thread: Native id of the calling thread.
            inputs: What it sends.

        Returns:
            What to call with its outputs; None if they are not needed.
        """
        size = sum(tensor.numel() * tensor.element_size() for tensor in inputs)
        is_sampled = is_chosen(call.sequence, self.every, size)
        is_comparable = is_sampled and makes_equal(call.operation) and group.name.aligned
        if not (is_sampled or (self.mode is NumericsMode.ALL and inputs)):
            return None
        tensors = described(inputs) if has_values(call.operation, call.reduce_op) else []
        if not (tensors or is_comparable):
            return None
        flags = (NumericsFlag.SAMPLED if is_sampled else 0) | (NumericsFlag.COMPARABLE if is_comparable else 0)
        words: dict[int, int] = {}
        elements = 0
        with torch.no_grad():
            if tensors:
                extremes = extremes_of(tensors)
                elements = extremes.elements
                flags |= 0 if extremes.is_finite else NumericsFlag.NON_FINITE
                if not is_sampled and extremes.is_finite:
                    return None
                words = _statistics(tensors, extremes.smallest, extremes.largest, is_sampled)
        tape = group.recorder.tape
        payload = pack_numerics(
            taken_ns=time.monotonic_ns(),
            step=call.step,
            sequence=call.sequence,
            group=channel.name_id,
            peer=call.peer,
            tag=tag,
            thread=thread,
            elements=elements,
            flags=int(flags),
            number_format=format_of(tensors),
        )
        number = tape.write_numerics(payload, words)

        def after(ended: OperationCall) -> None:
            with guard.guarded("numerics"), torch.no_grad():
                outputs = [tensor for tensor in ended.outputs if tensor.is_cpu and tensor.layout is torch.strided]
                if outputs and len(outputs) == len(ended.outputs):
                    checksum = checksum_word(checksum_of(outputs))
                    tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, checksum, How.CALL)

        return after if is_comparable else None


def _statistics(tensors: Sequence[torch.Tensor], smallest: float, largest: float, is_sampled: bool) -> dict[int, int]:
    """The words of a record, of an operation that is not sampled only its range."""
    if not is_sampled:
        return {NumericsWord.SMALLEST: float_word(smallest), NumericsWord.LARGEST: float_word(largest)}
    moments = moments_of(tensors)
    return {
        NumericsWord.SMALLEST: float_word(smallest, moments.zero_share),
        NumericsWord.LARGEST: float_word(largest, moments.subnormal_share),
        NumericsWord.MEAN: float_word(moments.mean, moments.saturated_share),
        NumericsWord.NORM: float_word(moments.norm),
        NumericsWord.INPUT_CHECKSUM: checksum_word(checksum_of(tensors)),
    }
