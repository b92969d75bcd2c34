"""Which parameters an input that is not finite belongs to. Looked for only once there is one, so it costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from otel_torchdist import guard
from otel_torchdist.capture.c10d.calls.message_parameters import MessageParameters, parameters_of_unit
from otel_torchdist.capture.observers.values.eligible import why_not
from otel_torchdist.capture.observers.values.statistics import extremes_of
from otel_torchdist.capture.torch_api import backward_id
from otel_torchdist.model.names import OTHER, SPARE_OF_SHAPES, ParameterNames

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.calls.call import GroupState

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
