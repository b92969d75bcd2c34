"""Registers the kernels of the native library, which run before the Python kernels.

The native kernel records calls that it has a plan for, without Python. It passes other calls on to the Python kernel,
which makes a plan and offers it to the library. So plans are made in one place, and rare calls (coalesced blocks,
uneven splits) stay in Python.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import guard
from otel_torchdist.capture.core.c10d.devices import ON_BACKEND_STREAM, RETURNS_WORK
from otel_torchdist.capture.core.calls.call import SOMETIMES, OpenCall, Plan
from otel_torchdist.capture.core.failures import failure_word
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import schema_of
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.native.library import Library, OperationLayout
from otel_torchdist.native.recording import NativePlan, NativeTapeWriter, PlanFlag

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.devices import Devices
    from otel_torchdist.capture.core.c10d.waits import Waits
    from otel_torchdist.capture.core.calls.schemas import OperationSchema
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.tape.writer import TapeWriter

_ON_HOST: Final = frozenset({"gloo", "fake"})
_ON_DEVICE: Final = frozenset({"nccl", "nccl2", "nccl-lazy", "nccl-legacy"})
"""Backends whose operations are recorded natively. Other backends may bring Works written in Python."""


CHECKED_EVERY: Final = 64
"""Number of new kinds of calls after which kinds of destroyed groups are dropped."""


class NativeKernels(SessionPart):
    """The native kernels, and the plans that the library has received.

    Attributes:
        python_key: Name of the dispatch key for which the Python kernels are registered.
    """

    def __init__(self, library: Library) -> None:
        """Initialize without registered kernels."""
        self.library = library
        self._python_key: int = library.python_key()
        self.python_key: str = library.python_key_name().decode()
        self._devices: Devices | None = None
        self._kinds: dict[tuple[int, int, int], int] = {}
        self._plans: dict[int, Plan] = {}
        self._last_kind = 0
        self._over_at_last_check: set[int] = set()
        self._checked_at = CHECKED_EVERY
        self._tape: TapeWriter | None = None

    def without_python_key(self, keyset: Any) -> Any:
        """Return the key set with which a Python kernel calls the backend."""
        return core.DISPATCH_KEY_SET.find().from_raw_repr(keyset.raw_repr() & ~self._python_key)

    def register(self, schema: OperationSchema) -> None:
        """Register the kernel of an operation."""
        torch_schema = schema_of(schema.overload)
        layout = OperationLayout(
            index=schema.index,
            group=schema.group,
            described=schema.described,
            reduce_op=schema.reduce_op,
            peer=schema.peer,
            tag=schema.tag,
            async_op=schema.async_op,
            input_splits=schema.input_splits,
            output_splits=schema.output_splits,
            gathered=schema.gathered,
            work=schema.work,
        )
        self.library.register(torch_schema.name.encode(), torch_schema.overload_name.encode(), ctypes.byref(layout))

    def register_wait(self, name: str) -> None:
        """Register the kernel of `wait_tensor` or `wait_tensors`."""
        self.library.register_wait(f"{core.FUNCTIONAL_OPS.name}::{name}".encode(), name == "wait_tensors")

    def remove(self) -> None:
        """Remove all kernels."""
        self.library.unregister()

    def follow_waits(self, waits: Waits) -> None:
        """Handle natively recorded waits that raise."""

        def failed(work: Any, number: int, entered_ns: int, kind: int, error: BaseException) -> None:
            plan = self._plans.get(kind)
            if plan is not None:
                waits.failed(OpenCall(number, entered_ns, plan), error, work)
            elif self._tape is not None:  # its group was destroyed long ago
                failure = failure_word(self._tape.names, error)
                self._tape.complete(number, entered_ns, time.monotonic_ns(), How.FAILED, failure)

        self._on_failed = failed  # the library keeps no reference
        self.library.call_on_failed_wait(failed)

    def follow_devices(self, devices: Devices) -> None:
        """Record operations on devices natively, too."""
        self._devices = devices

    def ends(self, recorder: Recorder) -> None:
        """Drop the plans of the tape."""
        self.leave_groups()

    def forget_in_child(self) -> None:
        """Drop the plans of the parent's tape."""
        self.leave_groups()

    def leave_groups(self) -> None:
        """Drop the plans of all groups."""
        self._kinds.clear()
        self._plans.clear()
        self._over_at_last_check.clear()
        self._checked_at = CHECKED_EVERY
        self._tape = None

    def offer(self, call: OpenCall, args: tuple[Any, ...]) -> None:
        """Offer the plan of a call that Python recorded, so that the library records such calls from now on."""
        try:
            plan = call.plan
            native = plan.group.recorder.native
            if native is None or (plan.offered == native.generation and _knows_reduce_op(plan)):
                return
            is_fixed = not plan.flags & Flag.COALESCED and _has_reduce_op_of(plan, args)
            if is_fixed and native.plan(self._native_plan(plan)):
                plan.offered = native.generation
        except Exception as error:
            guard.report("native plan", error)

    def _native_plan(self, plan: Plan) -> NativePlan | None:
        """Return the library's form of a plan, or None if Python always records its calls."""
        operation, group = plan.operation, plan.group.native
        if group is None or plan.group.is_over:
            return None
        if operation.received >= 0 and operation.input_splits < 0:
            return None  # lists of parts may be uneven
        # `tail_read` of a plan without a reduce op is for uneven exchanges, which stay in Python.
        tail = plan.tail_read if plan.reduce_op >= 0 else plan.tail
        if _is_on_host(plan):
            return NativePlan(
                group, plan.counter, None, tail, self._kind_of(plan), _flags_on_host(plan), plan.ragged_factor
            )
        devices = self._devices.native if plan.flags & Flag.ON_DEVICE and self._devices is not None else None
        if devices is None or plan.group.backend_on("cuda") not in _ON_DEVICE:
            return None
        if plan.flags & ON_BACKEND_STREAM and not devices.has_watchdog:
            return None
        return NativePlan(
            group, plan.counter, devices.handle, tail, self._kind_of(plan), _flags_on_device(plan), plan.ragged_factor
        )

    def plan_of(self, session: int, kind: int) -> Plan | None:
        """Return a plan with the group, operation and flags of a kind, or None if its session has ended."""
        plan = self._plans.get(kind)
        tape = plan.tape if plan is not None else None
        return plan if isinstance(tape, NativeTapeWriter) and tape.session == session else None

    def _kind_of(self, plan: Plan) -> int:
        key = (id(plan.group), plan.operation.index, plan.flags)
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._plans) >= self._checked_at:
                self._drop_groups_that_are_over()
            self._last_kind += 1
            kind = self._kinds[key] = self._last_kind
            self._plans[kind] = plan
            self._tape = plan.tape
        return kind

    def _drop_groups_that_are_over(self) -> None:
        """Drop the kinds of groups that were already over at the last check.

        A device may still run operations of groups that ended since.
        """
        over = {kind for kind, plan in self._plans.items() if plan.group.is_over}
        dropped = over & self._over_at_last_check
        self._plans = {kind: plan for kind, plan in self._plans.items() if kind not in dropped}
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind not in dropped}
        self._over_at_last_check = over - dropped
        self._checked_at = len(self._plans) + CHECKED_EVERY


def _is_on_host(plan: Plan) -> bool:
    """Return whether a plan's operations run on the CPU and the library can observe their ends."""
    return plan.on_cpu and plan.group.backend_on("cpu") in _ON_HOST


def _has_callback(plan: Plan) -> bool:
    """Return whether the Work's future completes when the operation ends; a fake Work's future always is complete."""
    return plan.group.backend_on("cpu") == "fake" or not plan.flags & Flag.END_BY_WAIT


def _knows_reduce_op(plan: Plan) -> bool:
    """Return whether Python knows the reduce op of a plan. The library always does; Python may not in torch 2.8."""
    return plan.reduce_op >= 0 or plan.operation.reduce_op < 0


def _has_reduce_op_of(plan: Plan, args: tuple[Any, ...]) -> bool:
    """Return whether the plan has this call's reduce op. The library will never read the op again."""
    return plan.reading != SOMETIMES or args[plan.operation.reduce_op].op() == plan.reduce_op


def _flags_on_host(plan: Plan) -> PlanFlag:
    flags = PlanFlag.MESSAGE if plan.flags & Flag.POINT_TO_POINT else PlanFlag(0)
    if plan.is_background:
        flags |= PlanFlag.BACKGROUND
    if plan.flags & Flag.ASYNC:
        flags |= PlanFlag.MAPS_MEMORY
    if plan.buckets is not None:
        flags |= PlanFlag.BUCKETS
    flags |= PlanFlag.CALLBACK if _has_callback(plan) else PlanFlag.WATCHED
    if plan.operation.synchronizing:
        flags |= PlanFlag.SYNCHRONIZING
    return flags


def _flags_on_device(plan: Plan) -> PlanFlag:
    flags = PlanFlag.BACKGROUND  # the caller continues while the device works
    if plan.flags & Flag.ASYNC:
        flags |= PlanFlag.MAPS_MEMORY
    if plan.flags & Flag.POINT_TO_POINT:
        flags |= PlanFlag.MESSAGE
    if plan.buckets is not None:
        flags |= PlanFlag.BUCKETS
    if plan.flags & ON_BACKEND_STREAM:
        flags |= PlanFlag.ELSEWHERE
    elif plan.group.backend_on("cuda") in RETURNS_WORK:
        flags |= PlanFlag.WORK_IGNORED
    return flags
