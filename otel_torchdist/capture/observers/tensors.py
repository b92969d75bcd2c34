"""Which arguments of an operation are sent, and which are written to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist.capture.torch_api import LIST
from otel_torchdist.model.collectives import BARRIERS, RECV, SEND, Waiting, waiting_in

if TYPE_CHECKING:
    import torch

    from otel_torchdist.capture.c10d.calls.schemas import OperationSchema

_IN_PLACE: Final = ("tensor", "tensors")


@dataclass(frozen=True, slots=True)
class TensorRoles:
    """The tensors of one operation.

    Attributes:
        sent: Index of the argument whose values are sent; -1 for none.
        written: Index of the argument that is written to; -1 for none.
        sent_by_root: Whether only the root's values are sent.
        written_by_root: Whether only the root's are written to.
    """

    sent: int
    written: int
    sent_by_root: bool
    written_by_root: bool

    def inputs(self, args: tuple[Any, ...], is_root: bool) -> tuple[torch.Tensor, ...]:
        """The tensors whose values this rank sends."""
        return () if self.sent < 0 or (self.sent_by_root and not is_root) else tuple(flat(args[self.sent]))

    def outputs(self, args: tuple[Any, ...], is_root: bool) -> tuple[torch.Tensor, ...]:
        """The tensors of this rank that are written to."""
        return () if self.written < 0 or (self.written_by_root and not is_root) else tuple(flat(args[self.written]))


def tensor_roles(operation: OperationSchema) -> TensorRoles:
    """Read an operation's schema: its outputs are called so, and the tensors of the others are both."""
    name, sent, written = operation.name, -1, -1
    for position, argument in enumerate(operation.overload._schema.arguments):
        if argument.name.startswith("output") and "Tensor" in str(argument.type):
            written = position
        elif argument.name.startswith("input") and "Tensor" in str(argument.type):
            sent = position
        elif argument.name in _IN_PLACE and name not in BARRIERS:
            sent = -1 if name == RECV else position
            written = -1 if name == SEND else position
    waiting = waiting_in(name)
    return TensorRoles(sent, written, waiting is Waiting.FOR_ROOT, waiting is Waiting.ROOT)


def flat(given: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument: one, a list, or a list of lists."""
    if type(given) is not LIST:
        yield given
        return
    for one in given:
        yield from flat(one)
