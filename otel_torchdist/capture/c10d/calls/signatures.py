"""Signatures of calls (shapes, dtypes and reduce op), determined once and then looked up by a key."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_torchdist.capture.c10d.calls.schemas import OperationSchema
from otel_torchdist.capture.torch_api import LIST, REDUCE_OPS, number_of_reduce_op
from otel_torchdist.model.collectives import BARRIERS, Contribution
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import OTHER, SPARE_OF_SHAPES, SignatureName

if TYPE_CHECKING:
    from collections.abc import Callable

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
