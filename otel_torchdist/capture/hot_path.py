"""What happens to every operation before and after the backend has it. Each line here is paid for by a training step.

A caller's exception passes unchanged; ours are contained, and the operation then goes unrecorded.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup

from otel_torchdist import _guard
from otel_torchdist.capture.completion import SWEPT_PER_CALL, Call, Works
from otel_torchdist.capture.signatures import key_of
from otel_torchdist.capture.torch_api import LIST, comm_label
from otel_torchdist.tape.layout import Flag, How, Word

if TYPE_CHECKING:
    from otel_torchdist.capture.device import Devices
    from otel_torchdist.capture.operations import OperationSchema
    from otel_torchdist.capture.process_group import Groups, GroupState
    from otel_torchdist.capture.steps import Steps

OVERHEAD_SAMPLE: Final = 16
"""One call in so many measures what our own code costs."""
MAX_TAG: Final = 0x7FFFFFFF

# Plain integers: arithmetic with enum members is several times slower.
_ASYNC: Final = int(Flag.ASYNC)
_POINT_TO_POINT: Final = int(Flag.POINT_TO_POINT)
_LEFT_ALONE: Final = _ASYNC | _POINT_TO_POINT | int(Flag.ON_DEVICE)
"""Only here is the time between return and end the caller's own; a synchronous call is waited for at once."""
_RETURNED: Final = int(Word.RETURNED)
_BY_CALL: Final = int(How.CALL)

_now: Final = time.monotonic_ns
_native_id: Final = threading.get_native_id
_frame: Final[Callable[[int], FrameType]] = sys._getframe  # pyright: ignore[reportPrivateUsage]  # its only name
_unbox_group: Final = ProcessGroup.unbox


def _is_meta(tensors: Any) -> bool:
    """Whether meta or fake tensors only pretend to communicate."""
    first = tensors[0] if type(tensors) is LIST and tensors else tensors
    return isinstance(first, torch.Tensor) and first.is_meta


class HotPath:
    """Records operations as they come and go."""

    def __init__(
        self,
        groups: Groups,
        steps: Steps,
        works: Works,
        devices: Devices,
        meet: Callable[[ProcessGroup], GroupState | None],
    ) -> None:
        """Wire the parts.

        Args:
            groups: Known groups.
            steps: Counts steps.
            works: Follows operations on the CPU.
            devices: Follows operations on devices.
            meet: Takes up a group that is not known yet; None when nothing can be recorded.
        """
        self._find = groups.find
        self._steps = steps
        self._works = works
        self.devices = devices
        self._meet = meet

    def enter(self, operation: OperationSchema, args: tuple[Any, ...]) -> Call | None:
        """Publish an operation before the backend gets it; None when it is not recorded."""
        entered = _now()
        try:
            process_group = _unbox_group(args[operation.group])
            group = self._find(process_group) or self._meet(process_group)
            if group is None:
                return None
            tensors = args[operation.described]
            if type(tensors) is LIST and len(tensors) == 1:
                tensors = tensors[0]
            if type(tensors) is LIST:
                shape, dtype, on_cpu = key_of(tensors), None, None
            else:
                shape, dtype, on_cpu = tensors.shape, tensors.dtype, tensors.is_cpu
            if not on_cpu and _is_meta(tensors):
                return None
            works = self._works
            if works.open:
                works.sweep(SWEPT_PER_CALL)
            async_op = operation.async_op
            peer = group.global_rank(args[operation.peer]) if operation.peer >= 0 else -1
            tag = args[operation.tag] & MAX_TAG if operation.tag >= 0 else 0
            frame = group.recorder.call_sites.user_frame(_frame(1).f_back)
            key = (
                operation.index,
                shape,
                dtype,
                on_cpu,
                # The dispatcher drops trailing arguments that have their default, which is True here.
                async_op >= 0 and (len(args) <= async_op or args[async_op]),
                peer,
                tag,
                group.coalescing is not None,
                comm_label(),
                _native_id(),
                frame and frame.f_code,
                frame and frame.f_lasti,
            )
            plans = group.plans
            plan = plans.get(key) or plans.make(key, operation, args)
            if plan is None:
                return None
            if plan.is_due():
                plan = plans.read_reduce_op(key, plan, operation, args)
            if operation.point_to_point:
                sequence = group.count_point_to_point(operation.name == "send", peer, tag)
            else:
                sequence = group.sequence + 1
                if group.is_default and not self._steps.source:
                    self._steps.collective_begins(sequence)
                group.sequence = sequence
            recorder = group.recorder
            number = recorder.tape.begin_prepared(entered, recorder.step, sequence, plan.tail)
            call = Call(number, entered, group, operation, plan.flags, plan.on_cpu)
            if not on_cpu and not plan.on_cpu:
                self.devices.before(call, tensors, peer)
            if not number % OVERHEAD_SAMPLE:
                call.own_ns = _now() - entered
            return call
        except Exception as error:
            _guard.report("operation entered", error)
            return None

    def leave(self, call: Call, result: Any, args: tuple[Any, ...]) -> None:
        """The backend has accepted an operation."""
        returned = _now()
        try:
            group = call.group
            if call.flags & _LEFT_ALONE:
                call.tape.mark(call.number, _RETURNED, returned - call.entered_ns, _BY_CALL)
            if group.coalescing is not None:
                group.coalescing.append(call)
            elif call.on_cpu:
                self._works.follow(call, result, args)
            else:
                self.devices.follow(call, result, args)
            if call.own_ns:
                own = call.own_ns + _now() - returned
                call.tape.add_overhead(own * OVERHEAD_SAMPLE, OVERHEAD_SAMPLE)
        except Exception as error:
            _guard.report("operation returned", error)

    def failed(self, call: Call, args: tuple[Any, ...], error: BaseException) -> None:
        """An operation raised inside torch: it was not issued, so its place in the sequence is free again."""
        operation, group = call.operation, call.group
        if operation.point_to_point:
            peer = group.global_rank(args[operation.peer]) if operation.peer >= 0 else -1
            group.uncount_point_to_point(operation.name == "send", peer, args[operation.tag] & MAX_TAG)
        elif operation.work >= 0:  # what returns no Work does not issue: it runs, and raises in the end
            group.sequence -= 1
        if not call.on_cpu:
            self.devices.failed(call)
        self._works.ended(call, How.FAILED, error)
