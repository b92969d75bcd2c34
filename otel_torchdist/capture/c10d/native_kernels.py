"""The kernels of the native library, which come before ours: what is planned there is recorded without Python.

A call that they do not know is left to the kernel in Python, which then says how such calls are recorded. So a plan is
made in one place, whoever records, and what is rare (devices, coalescing, point to point, uneven splits) stays in
Python.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import torch

from otel_torchdist import guard
from otel_torchdist.capture.c10d.call import SOMETIMES, Call, Plan
from otel_torchdist.native.library import Library, OperationLayout
from otel_torchdist.native.recording import PlanFlag
from otel_torchdist.tape.layout import Flag

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.schemas import OperationSchema
    from otel_torchdist.capture.c10d.waits import Waits

_LEFT_ALONE: Final = int(Flag.ASYNC)
_PYTHONS: Final = int(Flag.POINT_TO_POINT | Flag.ON_DEVICE)
"""Calls with these flags are always recorded in Python."""
_NATIVE: Final = frozenset({"gloo", "fake"})
"""Backends whose operations are recorded natively; others may bring Works written in Python."""


class NativeKernels:
    """Registers the kernels, and says how calls are recorded.

    Attributes:
        python_key: Name of the dispatch key for which the kernels in Python are registered.
    """

    def __init__(self, library: Library) -> None:
        """Initialize with nothing registered."""
        self._library = library
        self._python_key: int = library.python_key()
        self.python_key: str = library.python_key_name().decode()
        self._kinds: dict[tuple[int, int, int], int] = {}
        self._plans: list[Plan] = []

    def without_python_key(self, keyset: Any) -> Any:
        """The key set with which a kernel in Python calls the backend."""
        key_set: Any = torch._C.DispatchKeySet  # pyright: ignore  # not in the stubs
        return key_set.from_raw_repr(keyset.raw_repr() & ~self._python_key)

    def register(self, schema: OperationSchema) -> None:
        """Register the kernel of an operation."""
        name = schema.overload._schema.name
        layout = OperationLayout(
            index=schema.index,
            group=schema.group,
            described=schema.described,
            reduce_op=schema.reduce_op,
            peer=schema.peer,
            async_op=schema.async_op,
            input_splits=schema.input_splits,
            output_splits=schema.output_splits,
            work=schema.work,
        )
        self._library.register(name.encode(), schema.overload._schema.overload_name.encode(), ctypes.byref(layout))

    def register_wait(self, name: str) -> None:
        """Register the kernel of `wait_tensor` or `wait_tensors`."""
        self._library.register_wait(f"_c10d_functional::{name}".encode(), name == "wait_tensors")

    def remove(self) -> None:
        """Remove all kernels."""
        self._library.unregister()

    def follow_waits(self, waits: Waits) -> None:
        """Handle waits that are recorded natively and raise."""

        def failed(work: Any, number: int, entered_ns: int, kind: int, error: BaseException) -> None:
            waits.failed(Call(number, entered_ns, self._plans[kind]), error, work)

        self._on_failed = failed  # the library keeps no reference
        self._library.call_on_failed_wait(failed)

    def forget(self) -> None:
        """Drop what belongs to a tape that has ended."""
        self._kinds.clear()
        self._plans.clear()

    def offer(self, call: Call, args: tuple[Any, ...]) -> None:
        """Say how calls like this one, which was left to Python, are recorded from now on."""
        try:
            plan = call.plan
            native = plan.group.recorder.native
            if native is None or plan.offered == native.generation:
                return
            if not plan.flags & Flag.COALESCED and _is_read(plan, args):
                group = plan.group.native if _is_native(plan) else None
                # The other tail is that of uneven exchanges, which stay in Python.
                tail = plan.tail_read if plan.reduce_op >= 0 else plan.tail
                if native.plan(group, plan.channel.counter, tail, self._kind_of(plan), _flags_of(plan)):
                    plan.offered = native.generation
        except Exception as error:
            guard.report("native plan", error)

    def _kind_of(self, plan: Plan) -> int:
        key = (id(plan.group), plan.operation.index, plan.flags)
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = len(self._plans)
            self._plans.append(plan)
        return kind


def _is_native(plan: Plan) -> bool:
    """Whether calls of a plan can be recorded natively."""
    operation = plan.operation
    if not plan.on_cpu or plan.flags & _PYTHONS or plan.group.is_over:
        return False
    if operation.received >= 0 and operation.input_splits < 0:
        return False  # lists of parts may be uneven
    has_end = not plan.flags & _LEFT_ALONE or _has_callback(plan)
    return has_end and plan.group.backend_on("cpu") in _NATIVE


def _has_callback(plan: Plan) -> bool:
    """Whether the Work has a future that is complete when the operation is over; that of a fake one always is."""
    backend = plan.group.backend_on("cpu")
    return backend == "fake" or (backend == "gloo" and not plan.flags & Flag.END_BY_WAIT)


def _is_read(plan: Plan, args: tuple[Any, ...]) -> bool:
    """Whether the plan's reduce op is this call's, as it must be in a plan that is never read again."""
    return plan.reading != SOMETIMES or args[plan.operation.reduce_op].op() == plan.reduce_op


def _flags_of(plan: Plan) -> PlanFlag:
    flags = PlanFlag(0)
    if plan.flags & _LEFT_ALONE:
        flags |= PlanFlag.LEFT_ALONE | PlanFlag.MAPS_MEMORY
    if _has_callback(plan):
        flags |= PlanFlag.CALLBACK
    if plan.operation.synchronizing:
        flags |= PlanFlag.SYNCHRONIZING
    return flags
