"""Records the values of operations' tensors: which are not finite, and statistics of a sample of the operations.

Members of a group look at the same operations, without a word between them: the choice depends on nothing but the
operation's sequence and a size that all of them know, and large messages are chosen more rarely. Nothing is held,
copied or synchronised, no random numbers are drawn, and no gradient is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import torch

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.buckets import MessageParameters, parameters_of_unit
from otel_torchdist.capture.core.cuda.readings import Reading
from otel_torchdist.capture.core.torch_api import backward_id
from otel_torchdist.capture.tensors import eligible
from otel_torchdist.capture.tensors.device_values import Counts, DeviceValues, checksum_in, words_of_inputs
from otel_torchdist.capture.tensors.eligible import MUST_BE_EQUAL, makes_equal, why_not
from otel_torchdist.capture.tensors.statistics import checksum_of, extremes_of, format_of, moments_of
from otel_torchdist.config import NumericsMode
from otel_torchdist.model.collectives import operations_where
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import OTHER, SPARE_OF_SHAPES, ParameterNames
from otel_torchdist.model.numerics import NumericsFlag, Unseen
from otel_torchdist.tape.records.numerics import NumericsWord, checksum_word, float_word, pack_numerics

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.calls.channels import GroupChannel
    from otel_torchdist.capture.tensors.hooks import OperationCall
    from otel_torchdist.tape.writer import TapeWriter

CHUNK: Final = 1 << 16
"""Elements that are looked at together: where all are bad, as in a training that has diverged, only the first."""
_DDP_REDUCES: Final = "all_reduce"


@dataclass(frozen=True, slots=True)
class Culprits:
    """The parameters that may have brought a value.

    Attributes:
        names: Id of the name of the one that has, or of the first and the last that may have; 0 if they are not known.
        count: How many parameters the message holds.
    """

    names: int = OTHER
    count: int = 0


UNKNOWN: Final = Culprits()


def culprits_in(group: GroupState, operation: str, inputs: Sequence[torch.Tensor], is_found: bool) -> Culprits:
    """Find the parameters that brought a value that is not finite.

    Args:
        group: The group.
        operation: The name of the operation.
        inputs: What it sends.
        is_found: Whether such a value was found on the host; else a device may find one, but not where.
    """
    if len(inputs) != 1 or why_not(inputs[0]) is not None or not inputs[0].is_contiguous():
        return UNKNOWN
    try:
        return _find(group, operation, inputs[0], is_found)
    except Exception as error:
        guard.report("parameters of a message", error)
        return UNKNOWN


def _find(group: GroupState, operation: str, message: torch.Tensor, is_found: bool) -> Culprits:
    held: MessageParameters | None = None
    if operation == _DDP_REDUCES and group.buckets is not None and backward_id() >= 0:
        held = group.buckets.parameters_of_next(message.nbytes)
    if held is None and is_found:  # what a device may find can have the unit's name only, which is recorded anyway
        held = parameters_of_unit(message.numel(), len(group.name.ranks))
    if held is None:
        return UNKNOWN
    shown = (held.at(_first_bad(message)),) if is_found else (held.names[0], held.names[-1])
    names = group.recorder.tape.names.find_room(ParameterNames(tuple(dict.fromkeys(shown))), SPARE_OF_SHAPES)
    return Culprits(names, len(held.names))


def _first_bad(message: torch.Tensor) -> int:
    """Where the first element is that is not finite; there is one."""
    flat = message.detach().view(-1)
    for at in range(0, flat.numel(), CHUNK):
        chunk = flat.narrow(0, at, min(CHUNK, flat.numel() - at))
        parts = torch.view_as_real(chunk) if chunk.is_complex() else chunk
        if not extremes_of([parts]).is_finite:
            is_bad = ~torch.isfinite(chunk if chunk.element_size() > 1 else chunk.float())
            return at + int(is_bad.to(torch.uint8).argmax())
    return 0


_SUMS: Final = frozenset({"sum", "avg", "premul_sum"})
"""Reduce ops whose inputs should be finite; MIN and MAX are often given infinities to start with."""
_NOT_SHOWN: Final = ""
"""The reduce op in torch 2.8: it may be any."""
_REDUCES: Final = operations_where(lambda row: row.family.reduces)
_SENDS: Final = operations_where(
    lambda row: row.family.moves_data and not row.family.reduces and row.has_input_everywhere
)
_HASH: Final = 0x9E3779B1
_ROOM: Final = 1 << 32
BYTES_PER_SAMPLE: Final = 1 << 20
"""Of messages of this size one in `every` is sampled, of larger ones as many bytes."""


def is_chosen(sequence: int, every: int, size: int) -> bool:
    """Return whether an operation is sampled: the same on every member, and spread evenly over steps of any length.

    Args:
        sequence: Its sequence.
        every: One in so many.
        size: Bytes of its tensors.
    """
    return (sequence * _HASH) % _ROOM < _ROOM // (every * max(1, size // BYTES_PER_SAMPLE))


def has_values(operation: str, reduce_op: str, in_backward: bool = False) -> bool:
    """Return whether an operation sends values that should be finite; reduce ops that are not shown add up gradients only."""
    if operation in _REDUCES:
        return reduce_op in _SUMS or (reduce_op == _NOT_SHOWN and in_backward)
    return operation in _SENDS


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found in the inputs of an operation.

    Attributes:
        elements: How many floating numbers they have.
        words: What is known of them.
        is_finite: Whether those that were looked at are finite, as far as it is known.
        unseen: Why others were not looked at; None if all were.
        pending: What a device finds out.
        number_format: The type of those that were looked at; see `NumberFormat`.
    """

    elements: int = 0
    words: Mapping[int, int] = field(default_factory=dict[int, int])
    is_finite: bool = True
    unseen: Unseen | None = None
    pending: tuple[Reading, Counts] | None = None
    number_format: int = 0

    @property
    def flags(self) -> int:
        """The flags of the record."""
        return (
            (0 if self.is_finite else NumericsFlag.NON_FINITE)
            | (NumericsFlag.PENDING if self.pending is not None else 0)
            | (NumericsFlag.UNSEEN if self.unseen is not None else 0)
        )


_NOTHING: Final = _Look()


@dataclass(frozen=True, slots=True)
class NumericsObserver:
    """Looks at tensors before operations, and at those of a sample after them.

    Attributes:
        mode: What is looked at.
        every: One in so many operations is sampled.
        ranks: Ranks that look at their tensors; empty for all.
    """

    mode: NumericsMode
    every: int
    ranks: tuple[range, ...] = ()

    def is_for(self, rank: int) -> bool:
        """Return whether a rank looks at its tensors."""
        return not self.ranks or any(rank in some for some in self.ranks)

    def before(
        self,
        call: OperationCall,
        group: GroupState,
        channel: GroupChannel,
        tag: int,
        thread: int,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        devices: DeviceValues,
    ) -> Callable[[OperationCall], object] | None:
        """Record what the inputs of an operation are like.

        Args:
            call: The operation.
            group: Its group.
            channel: Its channel.
            tag: Its tag.
            thread: Native id of the calling thread.
            inputs: What it sends.
            outputs: What it writes to.
            devices: Looks at tensors on devices.

        Returns:
            What to call with its outputs; None if they are not needed.
        """
        must_be_equal = call.operation in MUST_BE_EQUAL
        # Only the root of a broadcast has inputs, so its members have no other size in common than that of the outputs.
        size = sum(tensor.nbytes for tensor in (outputs if must_be_equal else inputs))
        is_sampled = is_chosen(call.sequence, self.every, size)
        if not (is_sampled or (self.mode is NumericsMode.ALL and inputs)):
            return None
        is_comparable = is_sampled and must_be_equal and bool(outputs) and group.name.aligned
        is_comparable = is_comparable and makes_equal(call.operation, group.backend_on(outputs[0].device.type))
        looked = _NOTHING
        if has_values(call.operation, call.reduce_op, backward_id() >= 0):
            with torch.no_grad():
                looked = _look(inputs, is_sampled, devices)
        if not (looked.flags or is_comparable or (is_sampled and looked.elements)):
            return None
        may_be_bad = not looked.is_finite or looked.pending is not None
        culprits = culprits_in(group, call.operation, inputs, not looked.is_finite) if may_be_bad else UNKNOWN
        tape = group.recorder.tape
        payload = pack_numerics(
            taken_ns=time.monotonic_ns(),
            step=call.step,
            sequence=call.sequence,
            group=channel.name_id,
            peer=call.peer,
            tag=tag,
            thread=thread,
            elements=looked.elements,
            flags=looked.flags
            | (NumericsFlag.SAMPLED if is_sampled else 0)
            | (NumericsFlag.COMPARABLE if is_comparable else 0),
            number_format=looked.number_format,
            unseen=looked.unseen or 0,
            culprits=culprits.names,
            held=culprits.count,
        )
        number = tape.write_numerics(payload, looked.words)
        if looked.pending is not None:
            _fill_in(tape, number, looked.pending, devices)
        if not is_comparable:
            return None
        count = len(outputs)

        def after(ended: OperationCall) -> None:
            if len(ended.outputs) == count:  # what the program has dropped cannot be compared, nor can the rest
                with guard.guarded("numerics"), torch.no_grad():
                    _compare(tape, number, ended.outputs, devices)

        return after


def _look(inputs: Sequence[torch.Tensor], is_sampled: bool, devices: DeviceValues) -> _Look:
    """Look at the inputs of an operation; an error leaves it open what they are like."""
    try:
        found = eligible.sort(inputs)
        if not found.described:
            return _Look(unseen=found.unseen)
        if not found.described[0].is_cuda:
            return _look_on_host(found, is_sampled)
        pending = devices.inputs(found.described, is_sampled)
        if isinstance(pending, Unseen):
            return _Look(unseen=pending)
        kind = format_of(found.described)
        return _Look(pending[1].elements, unseen=found.unseen, pending=pending, number_format=kind)
    except Exception as error:
        guard.report("numerics", error)
        return _Look(unseen=Unseen.FAILED)


def _look_on_host(found: eligible.Sorted, is_sampled: bool) -> _Look:
    extremes = extremes_of(found.described)
    words: dict[int, int] = {}
    if is_sampled or not extremes.is_finite:
        words = _statistics(found.described, extremes.smallest, extremes.largest, is_sampled)
    kind = format_of(found.described)
    return _Look(extremes.elements, words, extremes.is_finite, found.unseen, number_format=kind)


def _fill_in(tape: TapeWriter, number: int, pending: tuple[Reading, Counts], devices: DeviceValues) -> None:
    """Have a record filled in when a device has found out what its operation's inputs are like."""
    reading, counts = pending

    def arrived(row: bytes) -> None:
        for word, value in words_of_inputs(row, counts).items():
            tape.mark(number, word, value, How.EVENT)

    devices.read(reading, arrived)


def _compare(tape: TapeWriter, number: int, outputs: Sequence[torch.Tensor], devices: DeviceValues) -> None:
    """Record the checksum of an operation's outputs, or why there is none."""
    unseen = eligible.why_no_checksum(outputs)
    if unseen is None and outputs[0].is_cuda:
        reading = devices.outputs(outputs)
        if not isinstance(reading, Unseen):
            devices.read(
                reading, lambda row: tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, checksum_in(row), How.EVENT)
            )
            return
        unseen = reading
    if unseen is not None:
        tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, unseen, How.UNTRACKED)
        return
    tape.mark(number, NumericsWord.OUTPUT_CHECKSUM, checksum_word(checksum_of(outputs)), How.CALL)


def _statistics(tensors: Sequence[torch.Tensor], smallest: float, largest: float, is_sampled: bool) -> dict[int, int]:
    """Return the words of a record, of an operation that is not sampled only its range."""
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
