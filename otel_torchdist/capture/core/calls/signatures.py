"""Signatures of calls, and ragged lines: lines whose calls hardly ever repeat a shape, such as gathers of objects."""

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

    from otel_torchdist.tape.names.writer import NamesWriter

MAX_DESCRIBED: Final = 8
"""Maximum number of tensors whose shapes are recorded. It bounds the cost of a call with 512 tensors."""
MAX_SUMMED: Final = 64
"""Maximum number of tensors whose bytes are summed."""


class CallSignature:
    """The properties of a call's tensors and reduce op that its plan needs.

    Attributes:
        signature: Its name id.
        bytes_as_root: Bytes that this rank contributes as the root, or without a root.
        bytes_as_member: Bytes that this rank contributes if another rank is the root.
        on_cpu: Whether the host can observe the end.
        flags: END_BY_WAIT, ON_DEVICE and SIGNATURE_CAPPED where they apply.
        reduce_op: Its number in torch; -1 if there is none.
        device: Device type, such as `cuda`.
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

    def describe(
        self, operation: OperationSchema, args: tuple[Any, ...], has_shapes: bool = True
    ) -> CallSignature | None:
        """Describe a call. Return None for meta and fake tensors, which do not communicate.

        Args:
            operation: The operation.
            args: Its arguments.
            has_shapes: Include the shapes.
        """
        described = args[operation.described]
        tensors: list[torch.Tensor] = described if type(described) is LIST else [described]
        if tensors and tensors[0].is_meta:
            return None
        reduce_op = number_of_reduce_op(args[operation.reduce_op]) if operation.reduce_op >= 0 else -1
        device = tensors[0].device.type if tensors else "cpu"
        size = sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors[:MAX_SUMMED])
        # gloo accepts device tensors, too. It works on copies on the host.
        on_cpu = device == "cpu" or self._backend_of(device) == "gloo"
        flags = Flag.END_BY_WAIT if on_cpu and self._ends_by_wait(operation, device) else Flag(0)
        if not on_cpu:
            flags |= Flag.ON_DEVICE
        name = _name(operation, tensors, reduce_op, device)
        if not has_shapes and name.shapes:
            name = dataclasses.replace(name, shapes=())
            flags |= Flag.SIGNATURE_CAPPED
        signature = self._names.intern_optional(name, SPARE_OF_SHAPES if name.shapes else 0)
        if signature == OTHER or len(tensors) > MAX_DESCRIBED:
            flags |= Flag.SIGNATURE_CAPPED
        if signature == OTHER:  # names without shapes are few
            signature = self._names.intern(dataclasses.replace(name, shapes=()))
        return CallSignature(
            signature=signature,
            as_root=self.contributed_bytes(operation, size, is_root=True),
            as_member=self.contributed_bytes(operation, size, is_root=False),
            on_cpu=on_cpu,
            flags=int(flags),
            reduce_op=reduce_op,
            device=device,
        )

    def _ends_by_wait(self, operation: OperationSchema, device: str) -> bool:
        """Return whether `is_completed()` is meaningless.

        gloo's send and recv become complete only when they are waited for, its reduce_scatter not even then; the fake
        backend's Work is never complete.
        """
        if operation.point_to_point or self.only_wait_ends:
            return True
        backend = self._backend_of(device)
        return backend == "fake" or (backend == "gloo" and operation.name.startswith("reduce_scatter"))

    def contributed_bytes(self, operation: OperationSchema, described_bytes: int, is_root: bool) -> int:
        """Return the bytes that this rank contributes, given the bytes of the described tensors."""
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
    """Return a key for a list of tensors: its length, and type and shape of the first `MAX_SUMMED`."""
    return (len(tensors), *((tensor.shape, tensor.dtype, tensor.is_cpu) for tensor in tensors[:MAX_SUMMED]))


RAGGED_AFTER: Final = 128
"""Number of different shapes at one line that makes it ragged."""
RAGGED_PEERS_AFTER: Final = 8
"""Number of different shapes with one root or peer that a ragged line must also have. If ranks take turns as the root,
each with a shape of its own, shapes do repeat."""
MAX_LINES: Final = 4096

Line: TypeAlias = tuple[Any, ...]
"""A call's plan key without its shapes."""
P = TypeVar("P")

_PEER: Final = -7
"""Index of the peer in a line; see `make_plan`."""
_SIZE: Final = struct.Struct("=Q")
"""The message size, the first field of the constant part of a record; see `tape.layout.PAYLOAD_TAIL`."""


class RaggedLines(Generic[P]):
    """The ragged lines of one group, with their shared plans.

    Planning a call takes several times as long as recording it, and a name for its shapes stays on the tape. So all
    calls of a ragged line share one plan: they are recorded with their size and without their shapes.
    """

    def __init__(self) -> None:
        """Initialize without lines."""
        self._shapes: dict[Line, int] = {}
        self._plans: dict[Line, P] = {}

    def find(self, line: Line) -> P | None:
        """Return the shared plan of a line, or None if the line is not ragged."""
        return self._plans.get(line)

    def count_shape(self, line: Line) -> bool:
        """Count a new shape at a line. Return whether the line is ragged."""
        with_this_peer, with_all = self._count(line), self._count(line[:_PEER] + line[_PEER + 1 :])
        return with_this_peer > RAGGED_PEERS_AFTER and with_all > RAGGED_AFTER

    def _count(self, line: Line) -> int:
        if len(self._shapes) >= MAX_LINES:
            self._shapes.clear()
        shapes = self._shapes[line] = self._shapes.get(line, 0) + 1
        return shapes

    def keep(self, line: Line, plan: P) -> None:
        """Share a plan among all calls of a ragged line."""
        if len(self._plans) >= MAX_LINES:
            self._plans.clear()
        self._plans[line] = plan

    def forget_plans(self) -> None:
        """Drop all shared plans."""
        self._plans.clear()


def line_of(key: tuple[Any, ...], operation: OperationSchema, args: tuple[Any, ...]) -> Line | None:
    """Return a call's key without shapes, or None for tensors of several types, which a plan cannot describe."""
    described = args[operation.described]
    tensors: list[Any] = described if type(described) is LIST else [described]
    dtypes = {tensor.dtype for tensor in tensors[:MAX_SUMMED]}
    return (key[0], len(tensors), dtypes.pop(), *key[3:]) if len(dtypes) == 1 else None


def with_size(tail: bytes, factor: int, described: Any) -> bytes:
    """Return the constant part of a record with the message size of one call of a ragged line.

    Args:
        tail: The plan's constant part.
        factor: See `Plan.ragged_factor`.
        described: The call's tensor or list of tensors.
    """
    tensors: list[Any] = described if type(described) is LIST else [described]
    size = sum([tensor.numel() * tensor.dtype.itemsize for tensor in tensors[:MAX_SUMMED]])
    return _SIZE.pack(size * factor) + tail[_SIZE.size :]
