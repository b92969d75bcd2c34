"""Calls whose shapes hardly repeat, such as gathered objects: from some number on, a line's calls share one plan.

Planning a call takes several times as long as recording it, and a name for its shapes stays for ever. Such calls are
recorded with their size and without their shapes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from otel_torchdist.capture.c10d.calls.signatures import MAX_SUMMED
from otel_torchdist.capture.torch_api import LIST

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.calls.schemas import OperationSchema

RAGGED_AFTER: Final = 128
"""Different shapes at one line after which its calls count as ragged."""
RAGGED_PEERS_AFTER: Final = 8
"""The same for one of several peers with which the line has as many together, such as roots that take turns."""
MAX_LINES: Final = 4096

Line: TypeAlias = tuple[Any, ...]
P = TypeVar("P")

_PEER: Final = -7
"""Where a line has its peer; see `make_plan`."""
_SIZE: Final = struct.Struct("=Q")
"""The size of the message, with which the constant part of a record begins; see `tape.layout.PAYLOAD_TAIL`."""


class RaggedLines(Generic[P]):
    """The lines of one group at which shapes vary, and the plans of those at which they hardly repeat."""

    def __init__(self) -> None:
        """Initialize without lines."""
        self._shapes: dict[Line, int] = {}
        self._plans: dict[Line, P] = {}

    def find(self, line: Line) -> P | None:
        """The plan of all calls of a line, if it is ragged."""
        return self._plans.get(line)

    def counts(self, line: Line) -> bool:
        """Count a shape at a line; returns whether it is ragged from now on."""
        with_this_peer, with_all = self._count(line), self._count(line[:_PEER] + line[_PEER + 1 :])
        return with_this_peer > RAGGED_PEERS_AFTER and with_all > RAGGED_AFTER

    def _count(self, line: Line) -> int:
        if len(self._shapes) >= MAX_LINES:
            self._shapes.clear()
        shapes = self._shapes[line] = self._shapes.get(line, 0) + 1
        return shapes

    def keep(self, line: Line, plan: P) -> None:
        """Use a plan for all calls of a ragged line."""
        if len(self._plans) >= MAX_LINES:
            self._plans.clear()
        self._plans[line] = plan

    def forget_plans(self) -> None:
        """Plan the calls of all lines anew."""
        self._plans.clear()


def line_of(key: tuple[Any, ...], operation: OperationSchema, args: tuple[Any, ...]) -> Line | None:
    """What is left of a call's key without shapes; None for tensors of several types, which no one plan describes."""
    given = args[operation.described]
    tensors: list[Any] = given if type(given) is LIST else [given]
    dtypes = {tensor.dtype for tensor in tensors[:MAX_SUMMED]}
    return (key[0], len(tensors), dtypes.pop(), *key[3:]) if len(dtypes) == 1 else None


def sized(tail: bytes, factor: int, given: Any) -> bytes:
    """The constant part of records of a ragged line, with the size of one call's message.

    Args:
        tail: The constant part.
        factor: By what the bytes of the call's tensors are multiplied.
        given: Its tensor, or a list of them.
    """
    tensors: list[Any] = given if type(given) is LIST else [given]
    size = sum([tensor.numel() * tensor.dtype.itemsize for tensor in tensors[:MAX_SUMMED]])
    return _SIZE.pack(size * factor) + tail[_SIZE.size :]
