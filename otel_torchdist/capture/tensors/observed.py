"""Calls observers before each operation and after its end, with the operation's tensors.

The Python kernels are wrapped only if there are observers. See `ends` for the detection of ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_native_id
from typing import TYPE_CHECKING, Any

from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.c10d.hot_path import MAX_TAG
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import REDUCE_OPS, Patches, number_of_reduce_op, skip_in_dynamo
from otel_torchdist.capture.tensors.device_values import DeviceValues
from otel_torchdist.capture.tensors.ends import AwaitedEnds, AwaitedOperation, TensorRoles, tensor_roles, tensors_in
from otel_torchdist.capture.tensors.hooks import Hook, Hooks, OperationCall
from otel_torchdist.capture.tensors.rehearsals import Rehearsals
from otel_torchdist.capture.tensors.replicas import Replicas
from otel_torchdist.capture.tensors.synchronized import Synchronizer, warn_of_distortion
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS
from otel_torchdist.model.collectives import SEND
from otel_torchdist.model.recording_level import RecordingLevel

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.devices import DeviceOperations
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.calls.channels import GroupChannel
    from otel_torchdist.capture.core.calls.schemas import OperationSchema
    from otel_torchdist.capture.core.recorder import Recorder
    from otel_torchdist.capture.tensors.choice import Observers

_logger = logging.getLogger("otel_torchdist")
Kernel = Callable[..., Any]


class _Thread(threading.local):
    """State of the calling thread.

    Attributes:
        is_inside: Whether the thread is in a hook.
    """

    is_inside = False


@dataclass(frozen=True, slots=True)
class _DescribedCall:
    """A call that observers are about to see.

    Attributes:
        call: The argument of hooks, without tensors.
        tag: Its tag; 0 for none.
        on_host: Whether it runs on the CPU.
    """

    call: OperationCall
    group: GroupState
    channel: GroupChannel
    tag: int
    on_host: bool


class ObservedCalls(SessionPart):
    """The session part that calls observers before and after kernels."""

    def __init__(
        self,
        observers: Observers,
        find_group: Callable[[ProcessGroup], GroupState | None],
        patches: Patches,
        current_recorder: Callable[[], Recorder | None],
        find_cuda: Callable[[], DeviceOperations | None],
    ) -> None:
        """Initialize the observers.

        Args:
            observers: The chosen observers.
            find_group: Returns the state of a group, or None if nothing can be recorded. Registers new groups.
            patches: Replaces methods, and restores them later.
            current_recorder: Returns the current recorder, or None.
            find_cuda: Returns the follower of CUDA operations, or None.
        """
        self._hooks = observers.hooks
        self._observers = observers
        self._numerics = observers.numerics
        self._devices = DeviceValues(find_cuda)
        self._needs_tensors = observers.needs_tensors
        self._synchronizer = Synchronizer(find_group) if observers.synchronizes else None
        every = observers.compare_parameters
        self._replicas = Replicas(every, find_group, current_recorder, self._devices) if every else None
        self._rehearsals = Rehearsals(patches)
        self._find_group = find_group
        self._thread = _Thread()
        self._ends = AwaitedEnds(find_group, patches, self._call_hooks)
        self._hooks_by_group: dict[tuple[int, int], tuple[tuple[Hook, ...], tuple[Hook, ...]]] = {}
        self._handles: list[Any] = []

    def hook(self, patches: Patches) -> None:
        """Hook coalescing blocks and optimizer steps."""
        if self._replicas is not None:
            self._replicas.hook(patches)
        if not self._needs_tensors:
            return
        if self._numerics is not None:
            self._rehearsals.follow()
        self._handles.append(self._ends.hook())

    def begins(self, recorder: Recorder) -> None:
        """Enable numerics on the configured ranks. Rank 0 warns about the settings."""
        rank, world_size = recorder.tape.identity.rank, recorder.tape.identity.world_size
        if self._synchronizer is not None and rank == 0:
            warn_of_distortion()
        numerics = self._observers.numerics
        self._numerics = numerics if numerics is not None and numerics.is_for(rank) else None
        if numerics is not None and rank == 0 and not any(map(numerics.is_for, range(world_size))):
            _logger.warning(
                "%s=%s names none of the %d ranks: no rank examines its tensors",
                OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS,
                ",".join(
                    f"{ranks.start}-{ranks[-1]}" if len(ranks) > 1 else str(ranks.start) for ranks in numerics.ranks
                ),
                world_size,
            )

    def reduce(self, level: RecordingLevel) -> None:
        """Check no values from `NO_VALUES` on. Hooks are the program's code, and stay."""
        if level >= RecordingLevel.NO_VALUES:
            self._numerics = None
        if self._replicas is not None:
            self._replicas.is_reduced = level >= RecordingLevel.NO_VALUES

    def unhook(self) -> None:
        """Remove the hooks, and drop pending operations."""
        if self._replicas is not None:
            self._replicas.unhook()
        self._rehearsals.unfollow()
        while self._handles:
            self._handles.pop().remove()
        self.forget_in_child()

    def ends(self, recorder: Recorder) -> None:
        """Drop pending operations."""
        self.forget_in_child()

    def forget_in_child(self) -> None:
        """Drop pending operations."""
        self._ends.forget_all()
        self._hooks_by_group.clear()
        self._thread = _Thread()
        if self._replicas is not None:
            self._replicas.forget_steps()

    # --- kernels -----------------------------------------------------------------------------------------------------

    def observe(self, operation: OperationSchema, kernel: Kernel) -> Kernel:
        """Call observers before and after a kernel, if any observer wants the operation."""
        hooks = tuple(hook for hook in self._hooks if hook.wants_operation(operation.name))
        synchronizer = self._synchronizer
        needs_tensors = bool(hooks) or self._numerics is not None
        if not needs_tensors and synchronizer is None:
            return kernel
        roles = tensor_roles(operation)
        ends = self._ends

        def observed(keyset: Any, *args: Any) -> Any:
            is_observed = needs_tensors and (hooks or self._numerics is not None)
            pending = self._begin(operation, roles, hooks, args) if is_observed else None
            devices = synchronizer.before(operation, args) if synchronizer is not None else ()
            result = kernel(keyset, *args)
            if synchronizer is not None:
                synchronizer.after(devices)
            if pending is not None:
                ends.issued(pending, operation, args, result)
            return result

        skip_in_dynamo(observed.__code__)
        return observed

    def observe_wait(self, kernel: Kernel) -> Kernel:
        """Wrap the kernel of `wait_tensor` or `wait_tensors`, if an observer needs tensors."""
        if not self._needs_tensors:
            return kernel

        ends = self._ends

        def observed_wait(keyset: Any, tensors: Any) -> Any:
            result = kernel(keyset, tensors)
            if ends.has_pending_memory:
                ends.end_by_tensors(tensors)
            return result

        skip_in_dynamo(observed_wait.__code__)
        return observed_wait

    def _begin(
        self, operation: OperationSchema, roles: TensorRoles, hooks: tuple[Hooks, ...], args: tuple[Any, ...]
    ) -> AwaitedOperation | None:
        """Call the hooks before an operation. Return the operation if there are hooks after it."""
        if self._thread.is_inside:
            return None
        self._ends.call_begins()
        described = None
        with guard.guarded("hooks"):
            described = self._describe(operation, args)
        if described is None:
            return None
        group = described.group
        before, after = self._hooks_for(operation, hooks, group)
        call = described.call
        is_root = call.peer < 0 or call.peer == call.rank
        inputs = roles.inputs(args, is_root) if before or self._numerics is not None else ()
        if before:
            self._call_hooks(before, replace(call, inputs=inputs))
        outputs = roles.outputs(args, is_root) if after or self._numerics is not None else ()
        if self._numerics is not None and not self._rehearsals.are_running:
            record = None
            begun_ns = time.monotonic_ns()
            with guard.guarded("numerics"):
                record = self._numerics.before(
                    call, group, described.channel, described.tag, get_native_id(), inputs, outputs, self._devices
                )
            group.recorder.tape.add_overhead(time.monotonic_ns() - begun_ns, 0)
            after = after if record is None else (record, *after)
        return AwaitedOperation(call, after, outputs, described.on_host) if after else None

    def _hooks_for(
        self, operation: OperationSchema, hooks: tuple[Hooks, ...], group: GroupState
    ) -> tuple[tuple[Hook, ...], tuple[Hook, ...]]:
        """Return the functions to call before and after an operation of a group."""
        key = (operation.index, group.name_id)
        functions = self._hooks_by_group.get(key)
        if functions is None:
            wanted = [hook for hook in hooks if hook.wants(group.name, group.rank)]
            before = tuple(hook.before_operation for hook in wanted if hook.before_operation is not None)
            after = tuple(hook.after_operation for hook in wanted if hook.after_operation is not None)
            functions = self._hooks_by_group[key] = (before, after)
        return functions

    def _describe(self, operation: OperationSchema, args: tuple[Any, ...]) -> _DescribedCall | None:
        """Describe a call. Return None for unrecorded groups, and for meta and fake tensors."""
        group = self._find_group(ProcessGroup.unbox(args[operation.group]))
        if group is None:
            return None
        first = next(tensors_in(args[operation.described]), None)
        if first is not None and first.is_meta:
            return None
        device = first.device.type if first is not None else "cpu"
        peer = group.global_rank(args[operation.peer]) if operation.peer >= 0 else -1
        tag = args[operation.tag] & MAX_TAG if operation.tag >= 0 else 0
        channel = group.channel_of(device)
        counter = channel.counter
        if operation.point_to_point:
            counter, _ = channel.message_counter(operation.name == SEND, peer, tag)
        sites = group.recorder.call_sites
        site = sites.find(2)
        reduce_op = number_of_reduce_op(args[operation.reduce_op]) if operation.reduce_op >= 0 else -1
        call = OperationCall(
            operation=operation.name,
            group=group.name,
            sequence=counter[0] + 1,
            rank=group.rank,
            step=group.recorder.step,
            peer=peer,
            reduce_op=REDUCE_OPS.get(reduce_op, ""),
            call_site=sites.describe(site),
        )
        return _DescribedCall(call, group, channel, tag, device == "cpu")

    def _call_hooks(self, hooks: tuple[Hook, ...], call: OperationCall) -> None:
        """Call hooks. Their exceptions propagate to the program."""
        thread = self._thread
        thread.is_inside = True
        try:
            for hook in hooks:
                hook(call)
        finally:
            thread.is_inside = False
