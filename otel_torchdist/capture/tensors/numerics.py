"""Records numerics of operations' tensors: non-finite values, and statistics of a sample of the operations.

All members of a group sample the same operations without communication: the choice only depends on the sequence number
and on a size that all of them know. Large messages are sampled more rarely. Nothing is held, copied or synchronized, no
random numbers are drawn, and no gradient is recorded.
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
from otel_torchdist.capture.tensors.eligible import MUST_BE_EQUAL, makes_equal, why_unreadable
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
"""Number of elements that are searched at once for the first non-finite value."""
_DDP_REDUCES: Final = "all_reduce"


@dataclass(frozen=True, slots=True)
class Culprits:
    """The parameters that may contain a non-finite value.

    Attributes:
        names: Name id of the culprit, or of the first and the last candidate; 0 if unknown.
        count: Number of parameters in the message.
    """

    names: int = OTHER
    count: int = 0


UNKNOWN: Final = Culprits()


def culprits_in(group: GroupState, operation: str, inputs: Sequence[torch.Tensor], is_found_by_host: bool) -> Culprits:
    """Find the parameters that contain a non-finite value.

    Args:
        group: The group.
        operation: Name of the operation.
        inputs: The sent tensors.
        is_found_by_host: Whether the host has found the value. A device may find a value later, but not its position.
    """
    if len(inputs) != 1 or why_unreadable(inputs[0]) is not None or not inputs[0].is_contiguous():
        return UNKNOWN
    try:
        return _find_culprits(group, operation, inputs[0], is_found_by_host)
    except Exception as error:
        guard.report("parameters of a message", error)
        return UNKNOWN


def _find_culprits(group: GroupState, operation: str, message: torch.Tensor, is_found_by_host: bool) -> Culprits:
    parameters: MessageParameters | None = None
    if operation == _DDP_REDUCES and group.buckets is not None and backward_id() >= 0:
        parameters = group.buckets.parameters_of_next(message.nbytes)
    if parameters is None and is_found_by_host:  # on a device, only the unit would be known, as the label shows
        parameters = parameters_of_unit(message.numel(), len(group.name.ranks))
    if parameters is None:
        return UNKNOWN
    shown = (parameters.at(_first_bad(message)),) if is_found_by_host else (parameters.names[0], parameters.names[-1])
    names = group.recorder.tape.names.intern_optional(ParameterNames(tuple(dict.fromkeys(shown))), SPARE_OF_SHAPES)
    return Culprits(names, len(parameters.names))


def _first_bad(message: torch.Tensor) -> int:
    """Return the index of the first non-finite element. There must be one."""
    flat = message.detach().view(-1)
    for offset in range(0, flat.numel(), CHUNK):
        chunk = flat.narrow(0, offset, min(CHUNK, flat.numel() - offset))
        parts = torch.view_as_real(chunk) if chunk.is_complex() else chunk
        if not extremes_of([parts]).is_finite:
            is_bad = ~torch.isfinite(chunk if chunk.element_size() > 1 else chunk.float())
            return offset + int(is_bad.to(torch.uint8).argmax())
    return 0


_SUMS: Final = frozenset({"sum", "avg", "premul_sum"})
"""Reduce ops whose inputs should be finite. MIN and MAX often start with infinities."""
_HIDDEN: Final = ""
"""The reduce op in torch 2.8, which does not expose it."""
_REDUCES: Final = operations_where(lambda row: row.family.reduces)
_SENDS: Final = operations_where(
    lambda row: row.family.moves_data and not row.family.reduces and row.has_input_everywhere
)
_HASH: Final = 0x9E3779B1
_HASH_RANGE: Final = 1 << 32
BYTES_PER_SAMPLE: Final = 1 << 20
"""Up to this size, one in `every` messages is sampled. Larger messages are sampled at the same rate of bytes."""


def is_chosen(sequence: int, every: int, size: int) -> bool:
    """Return whether an operation is sampled: the same on every member, and spread evenly over steps of any length.

    Args:
        sequence: Its sequence number.
        every: Sampling interval.
        size: Bytes of its tensors.
    """
    return (sequence * _HASH) % _HASH_RANGE < _HASH_RANGE // (every * max(1, size // BYTES_PER_SAMPLE))


def has_values(operation: str, reduce_op: str, in_backward: bool = False) -> bool:
    """Return whether an operation sends values that should be finite. A hidden reduce op counts in backward passes."""
    if operation in _REDUCES:
        return reduce_op in _SUMS or (reduce_op == _HIDDEN and in_backward)
    return operation in _SENDS


@dataclass(frozen=True, slots=True)
class _Examined:
    """The examination of an operation's inputs.

    Attributes:
        elements: Number of floating-point elements.
        words: Statistics, by word of the record.
        is_finite: Whether all examined elements are finite; True if a device is still computing it.
        unseen: Why other inputs were not examined; None if all were.
        pending: The result that a device is computing.
        number_format: The type of the examined inputs; see `NumberFormat`.
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


_NOTHING: Final = _Examined()


@dataclass(frozen=True, slots=True)
class NumericsObserver:
    """Observer of the values of tensors, before operations, and of sampled operations also after them.

    Attributes:
        mode: The examined values.
        every: Sampling interval, in operations.
        ranks: Ranks that examine their tensors; empty for all.
    """

    mode: NumericsMode
    every: int
    ranks: tuple[range, ...] = ()

    def is_for(self, rank: int) -> bool:
        """Return whether a rank examines its tensors."""
        return not self.ranks or any(rank in ranks for ranks in self.ranks)

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
        """Record the inputs of an operation.

        Args:
            call: The operation.
            group: Its group.
            channel: Its channel.
            tag: Its tag.
            thread: Native id of the calling thread.
            inputs: The sent tensors.
            outputs: The written tensors.
            devices: Computes statistics of tensors on devices.

        Returns:
            A function to call with the outputs, or None if they are not needed.
        """
        must_be_equal = call.operation in MUST_BE_EQUAL
        # Only the root of a broadcast has inputs. The size of the outputs is the same on all members.
        size = sum(tensor.nbytes for tensor in (outputs if must_be_equal else inputs))
        is_sampled = is_chosen(call.sequence, self.every, size)
        if not (is_sampled or (self.mode is NumericsMode.ALL and inputs)):
            return None
        is_comparable = is_sampled and must_be_equal and bool(outputs) and group.name.aligned
        is_comparable = is_comparable and makes_equal(call.operation, group.backend_on(outputs[0].device.type))
        examined = _NOTHING
        if has_values(call.operation, call.reduce_op, backward_id() >= 0):
            with torch.no_grad():
                examined = _examine(inputs, is_sampled, devices)
        if not (examined.flags or is_comparable or (is_sampled and examined.elements)):
            return None
        may_be_bad = not examined.is_finite or examined.pending is not None
        culprits = culprits_in(group, call.operation, inputs, not examined.is_finite) if may_be_bad else UNKNOWN
        tape = group.recorder.tape
        payload = pack_numerics(
            taken_ns=time.monotonic_ns(),
            step=call.step,
            sequence=call.sequence,
            group=channel.name_id,
            peer=call.peer,
            tag=tag,
            thread=thread,
            elements=examined.elements,
            flags=examined.flags
            | (NumericsFlag.SAMPLED if is_sampled else 0)
            | (NumericsFlag.COMPARABLE if is_comparable else 0),
            number_format=examined.number_format,
            unseen=examined.unseen or 0,
            culprits=culprits.names,
            held=culprits.count,
        )
        number = tape.write_numerics(payload, examined.words)
        if examined.pending is not None:
            _fill_in(tape, number, examined.pending, devices)
        if not is_comparable:
            return None
        count = len(outputs)

        def after(ended: OperationCall) -> None:
            if len(ended.outputs) == count:  # if the program has dropped some outputs, the checksum is not comparable
                begun_ns = time.monotonic_ns()
                with guard.guarded("numerics"), torch.no_grad():
                    _record_checksum(tape, number, ended.outputs, devices)
                tape.add_overhead(time.monotonic_ns() - begun_ns, 0)

        return after


def _examine(inputs: Sequence[torch.Tensor], is_sampled: bool, devices: DeviceValues) -> _Examined:
    """Examine the inputs of an operation. After an error, they count as unseen."""
    try:
        selected = eligible.select_inputs(inputs)
        if not selected.described:
            return _Examined(unseen=selected.unseen)
        if not selected.described[0].is_cuda:
            return _examine_on_host(selected, is_sampled)
        pending = devices.inputs(selected.described, is_sampled)
        if isinstance(pending, Unseen):
            return _Examined(unseen=pending)
        kind = format_of(selected.described)
        return _Examined(pending[1].elements, unseen=selected.unseen, pending=pending, number_format=kind)
    except Exception as error:
        guard.report("numerics", error)
        return _Examined(unseen=Unseen.FAILED)


def _examine_on_host(selected: eligible.SelectedInputs, is_sampled: bool) -> _Examined:
    extremes = extremes_of(selected.described)
    words: dict[int, int] = {}
    if is_sampled or not extremes.is_finite:
        words = _statistics(selected.described, extremes.smallest, extremes.largest, is_sampled)
    kind = format_of(selected.described)
    return _Examined(extremes.elements, words, extremes.is_finite, selected.unseen, number_format=kind)


def _fill_in(tape: TapeWriter, number: int, pending: tuple[Reading, Counts], devices: DeviceValues) -> None:
    """Complete a record when a device has computed the statistics of the inputs."""
    reading, counts = pending

    def arrived(row: bytes) -> None:
        for word, value in words_of_inputs(row, counts).items():
            tape.mark(number, word, value, How.EVENT)

    devices.read(reading, arrived)


def _record_checksum(tape: TapeWriter, number: int, outputs: Sequence[torch.Tensor], devices: DeviceValues) -> None:
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
    """Return the words of a record; only the range for an operation that is not sampled."""
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
