"""Calls whose shapes hardly repeat, such as gathered objects: from some number on, a line's calls share one plan.

Planning a call takes several times as long as recording it, and a name for its shapes stays for ever. Such calls are
recorded with their size and without their shapes.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import torch

from otel_torchdist.capture.core.calls.schemas import OperationSchema
from otel_torchdist.capture.core.torch_api import LIST, REDUCE_OPS, number_of_reduce_op
from otel_torchdist.model.collectives import BARRIERS, Contribution
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import OTHER, SPARE_OF_SHAPES, SignatureName

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_torchdist.capture.core.calls.schemas import OperationSchema
    from otel_torchdist.tape.names.writer import NamesWriter

MAX_DESCRIBED: Final = 8
"""Tensors whose shapes are recorded, so that a call with 512 tensors costs no more than one with eight."""
MAX_SUMMED: Final = 64
"""Tensors whose bytes are summed."""


class Described:
    """A signature as the hot path needs it. A plain class with slots, because its fields are read on every call.

    Attributes:
        signature: Its name id.
        bytes_as_root: Bytes that this rank contributes when it is the root (or there is none).
        bytes_as_member: Bytes that this rank contributes when another rank is the root.
        on_cpu: Whether the host can observe the end; otherwise a device works on its own.
        flags: END_BY_WAIT, ON_DEVICE and SIGNATURE_CAPPED where they apply.
        reduce_op: Its number in torch; -1 if there is none.
        device: Type of the device.
    """

    __slots__ = ("bytes_as_member", "bytes_as_root", "device", "flags", "on_cpu", "reduce_op", "signature")

    def __init__(
        self, signature: int, as_root: int, as_member: int, on_cpu: bool, flags: int, reduce_op: int, device: str
    ) -> None:
        self.device = device
        self.signature = signature
        self.reduce_op = reduce_op
        self.bytes_as_root = as_root
        self.bytes_as_member = as_member
        self.on_cpu = on_cpu
        self.flags = flags


class Signatures:
    """The signatures of one process group."""

    def __init__(self, names: NamesWriter, backend_of: Callable[[str], str], size: int) -> None:
        """Intern names into `names`; `backend_of` returns the backend for a device type, `size` is the group's size."""
        self._names = names
        self._backend_of = backend_of
        self._size = size
        self.only_wait_ends = False

    def describe(self, operation: OperationSchema, args: tuple[Any, ...], has_shapes: bool = True) -> Described | None:
        """Describe a call; None for meta and fake tensors, which only pretend to communicate.

        Args:
            operation: The operation.
            args: Its arguments.
            has_shapes: Whether its shapes are described, too.
        """
        given = args[operation.described]
        tensors: list[torch.Tensor] = given if type(given) is LIST else [given]
        if tensors and tensors[0].is_meta:
            return None
        reduce_op = number_of_reduce_op(args[operation.reduce_op]) if operation.reduce_op >= 0 else -1
        device = tensors[0].device.type if tensors else "cpu"
        size = sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors[:MAX_SUMMED])
        # gloo also accepts device tensors, and works on copies on the host.
        on_cpu = device == "cpu" or self._backend_of(device) == "gloo"
        flags = Flag.END_BY_WAIT if on_cpu and self._ends_by_wait(operation, device) else Flag(0)
        if not on_cpu:
            flags |= Flag.ON_DEVICE
        name = _name(operation, tensors, reduce_op, device)
        if not has_shapes and name.shapes:
            name = dataclasses.replace(name, shapes=())
            flags |= Flag.SIGNATURE_CAPPED
        signature = self._names.find_room(name, SPARE_OF_SHAPES if name.shapes else 0)
        if signature == OTHER or len(tensors) > MAX_DESCRIBED:
            flags |= Flag.SIGNATURE_CAPPED
        if signature == OTHER:  # there are few names without shapes
            signature = self._names.intern(dataclasses.replace(name, shapes=()))
        return Described(
            signature=signature,
            as_root=self.contributed(operation, size, is_root=True),
            as_member=self.contributed(operation, size, is_root=False),
            on_cpu=on_cpu,
            flags=int(flags),
            reduce_op=reduce_op,
            device=device,
        )

    def _ends_by_wait(self, operation: OperationSchema, device: str) -> bool:
        """Whether `is_completed()` is meaningless.

        gloo's send and recv become complete only when they are waited for, its reduce_scatter not even then; the fake
        backend's Work is never complete.
        """
        if operation.point_to_point or self.only_wait_ends:
            return True
        backend = self._backend_of(device)
        return backend == "fake" or (backend == "gloo" and operation.name.startswith("reduce_scatter"))

    def contributed(self, operation: OperationSchema, described_bytes: int, is_root: bool) -> int:
        """Bytes that this rank contributes to an operation whose described tensors have so many."""
        contribution = operation.contribution
        if contribution is Contribution.ALL:
            return described_bytes
        if contribution is Contribution.TIMES_GROUP:
            return described_bytes * self._size
        if contribution is Contribution.NOTHING or not is_root:
            return 0
        return described_bytes * (self._size if contribution is Contribution.ROOT_TIMES_GROUP else 1)


def _name(operation: OperationSchema, tensors: list[torch.Tensor], reduce_op: int, device: str) -> SignatureName:
    described = [] if operation.name in BARRIERS else tensors[:MAX_DESCRIBED]
    dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in described)
    return SignatureName(
        operation=operation.name,
        reduce_op=REDUCE_OPS.get(reduce_op, ""),
        shapes=tuple(tuple(int(size) for size in tensor.shape) for tensor in described),
        dtypes=dtypes[:1] if len(set(dtypes)) == 1 else dtypes,
        device=device,
        tensors=len(tensors) if described else 0,
    )


def key_of(tensors: list[torch.Tensor]) -> tuple[object, ...]:
    """A key that distinguishes lists of tensors, by their length and at most `MAX_SUMMED` of them."""
    return (len(tensors), *((tensor.shape, tensor.dtype, tensor.is_cpu) for tensor in tensors[:MAX_SUMMED]))


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
    """The lines of one group at which shapes vary, and the plans of those at which they hardly repeat.

    Planning a call takes several times as long as recording it, and a name for its shapes stays for ever. So from some
    number on, the calls of such a line share one plan: they are recorded with their size and without their shapes.
    """

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
