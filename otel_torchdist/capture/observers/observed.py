"""Calls observers before each operation, and when it has ended, with its tensors.

It stands in front of the kernels in Python, and only where there is an observer: without one nothing is in the way.
Nothing is held: outputs are found again by weak references, which stay alive as long as the program or torch's C++ has
the tensor (DDP's buckets too). An operation has ended for its observers where a wait for it returns. Where C++ waits,
the optimizer's step is the first point at which all that the backward pass has issued is over.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import get_native_id
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup, Work
from torch.optim import Optimizer

from otel_torchdist import guard
from otel_torchdist.capture.c10d.hot_path import MAX_TAG
from otel_torchdist.capture.observers.device_values import DeviceValues
from otel_torchdist.capture.observers.hooks import Hook, Hooks, OperationCall
from otel_torchdist.capture.observers.rehearsals import Rehearsals
from otel_torchdist.capture.observers.replicas import Replicas
from otel_torchdist.capture.observers.synchronized import Synchronizer, warn_of_distortion
from otel_torchdist.capture.observers.tensors import TensorRoles, flat, tensor_roles
from otel_torchdist.capture.torch_api import (
    REDUCE_OPS,
    Patches,
    backward_id,
    hook_before_optimizers,
    number_of_reduce_op,
    skip_in_dynamo,
)
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS

if TYPE_CHECKING:
    from otel_torchdist.capture.c10d.call import Channel, GroupState
    from otel_torchdist.capture.c10d.devices import DeviceOperations
    from otel_torchdist.capture.c10d.schemas import OperationSchema
    from otel_torchdist.capture.observers.choice import Observing
    from otel_torchdist.capture.recorder import Recorder

_logger = logging.getLogger("otel_torchdist")
MAX_PENDING: Final = 1_024
"""Operations whose end is awaited; those that are never waited for must not accumulate."""

Kernel = Callable[..., Any]


class _Thread(threading.local):
    """Whether the calling thread is inside a hook."""

    is_inside = False


class _Pending:
    """An operation that has not ended for its observers.

    Attributes:
        call: What hooks receive, without tensors.
        hooks: Called when it has ended.
        outputs: References to what it writes to.
        in_backward: Whether a backward pass has issued it.
        on_host: Whether it runs on the CPU.
        work: Reference to its Work; None if it has none, or not yet.
    """

    __slots__ = ("call", "hooks", "in_backward", "on_host", "outputs", "work")

    def __init__(
        self, call: OperationCall, hooks: tuple[Hook, ...], outputs: tuple[torch.Tensor, ...], on_host: bool
    ) -> None:
        self.call = call
        self.hooks = hooks
        self.outputs = tuple([weakref.ref(tensor) for tensor in outputs])
        self.in_backward = backward_id() >= 0
        self.on_host = on_host
        self.work: weakref.ref[Any] | None = None

    @guard.calls_plug_ins
    def may_be_awaited(self) -> bool:
        """Whether its Work exists, which has not ended: then the program may still wait for it."""
        work = self.work() if self.work is not None else None
        try:
            if work is None or work.is_completed():
                return False
            # Of gloo, C++ waits for the future, which is complete a moment before the Work; of NCCL that says nothing.
            return not (self.on_host and work.get_future().done())
        except Exception as error:
            guard.pass_on(error)
            return True


@dataclass(frozen=True, slots=True)
class _Described:
    """A call.

    Attributes:
        known: What hooks receive, without tensors.
        group: Its group.
        channel: Its channel.
        tag: Its tag; 0 for none.
        on_host: Whether it runs on the CPU.
    """

    known: OperationCall
    group: GroupState
    channel: Channel
    tag: int
    on_host: bool


class ObservedCalls:
    """Puts observers in front of the kernels."""

    def __init__(
        self,
        observing: Observing,
        meet: Callable[[ProcessGroup], GroupState | None],
        patches: Patches,
        current: Callable[[], Recorder | None],
        find_cuda: Callable[[], DeviceOperations | None],
    ) -> None:
        """Initialize the observers.

        Args:
            observing: What looks at tensors.
            meet: Finds or registers a group; returns None if nothing is recorded.
            patches: Replaces methods, and restores them later.
            current: Returns the recorder in use; None if there is none.
            find_cuda: Returns what follows operations on CUDA devices; None if nothing does.
        """
        self._hooks = observing.hooks
        self._observing = observing
        self._numerics = observing.numerics
        self._devices = DeviceValues(find_cuda)
        self._looks_at_tensors = observing.looks_at_tensors
        self._synchronizer = Synchronizer(meet) if observing.synchronizes else None
        every = observing.compare_parameters
        self._replicas = Replicas(every, meet, current, self._devices) if every else None
        self._rehearsals = Rehearsals(patches)
        self._meet = meet
        self._patches = patches
        self._patched: set[type] = set()
        self._thread = _Thread()
        self._pending: OrderedDict[_Pending, None] = OrderedDict()
        self._by_work: dict[int, tuple[weakref.ref[Any], list[_Pending]]] = {}
        self._by_memory: dict[int, _Pending] = {}
        # The Work of each thread's last operation on a device, until its next call: its caller then gets this very
        # object, by which a wait is recognized. On the CPU, `Works` holds it.
        self._last_works: dict[int, Any] = {}
        self._blocks: dict[int, list[_Pending]] = {}
        self._wanted: dict[tuple[int, int], tuple[tuple[Hook, ...], tuple[Hook, ...]]] = {}
        self._handles: list[Any] = []

    def hook(self) -> None:
        """Follow blocks of coalesced operations, and the steps of optimizers."""
        if self._replicas is not None:
            self._replicas.hook(self._patches)
        if not self._looks_at_tensors:
            return
        if self._numerics is not None:
            self._rehearsals.follow()
        self._patches.replace(ProcessGroup, "_end_coalescing", self._make_end_coalescing)
        skip_in_dynamo(ObservedCalls._settle.__code__, with_callees=False)
        self._handles.append(hook_before_optimizers(self._settle))

    def rank_begins(self, rank: int, world_size: int) -> None:
        """Look at values only if this rank is among those that do so; one rank warns of what the settings do."""
        if self._synchronizer is not None and rank == 0:
            warn_of_distortion()
        numerics = self._observing.numerics
        self._numerics = numerics if numerics is not None and numerics.is_for(rank) else None
        if numerics is not None and rank == 0 and not any(map(numerics.is_for, range(world_size))):
            _logger.warning(
                "%s=%s names none of the %d ranks: no rank looks at its tensors",
                OTEL_PYTHON_TORCHDIST_NUMERICS_RANKS,
                ",".join(f"{one.start}-{one[-1]}" if len(one) > 1 else str(one.start) for one in numerics.ranks),
                world_size,
            )

    def unhook(self) -> None:
        """Stop following, and forget what has not ended."""
        if self._replicas is not None:
            self._replicas.unhook()
        self._rehearsals.unfollow()
        while self._handles:
            self._handles.pop().remove()
        self.forget_all()

    def forget_all(self) -> None:
        """Forget what has not ended, because the tape ends or this is a forked child."""
        for table in (self._pending, self._by_work, self._by_memory, self._blocks, self._wanted, self._last_works):
            table.clear()
        self._thread = _Thread()
        if self._replicas is not None:
            self._replicas.forget_steps()

    # --- kernels -----------------------------------------------------------------------------------------------------

    def observe(self, operation: OperationSchema, kernel: Kernel) -> Kernel:
        """Return a kernel that calls observers around another one; that one itself if none wants the operation."""
        hooks = tuple(one for one in self._hooks if one.wants_operation(operation.name))
        synchronizer = self._synchronizer
        looks_at_tensors = bool(hooks) or self._numerics is not None
        if not looks_at_tensors and synchronizer is None:
            return kernel
        roles = tensor_roles(operation)

        def observed(keyset: Any, *args: Any) -> Any:
            looks = looks_at_tensors and (hooks or self._numerics is not None)
            pending = self._begin(operation, roles, hooks, args) if looks else None
            devices = synchronizer.before(operation, args) if synchronizer is not None else ()
            result = kernel(keyset, *args)
            if synchronizer is not None:
                synchronizer.after(devices)
            if pending is not None:
                self._issued(pending, operation, args, result)
            return result

        skip_in_dynamo(observed.__code__, with_callees=False)
        return observed

    def observe_wait(self, kernel: Kernel) -> Kernel:
        """The same for `wait_tensor` and `wait_tensors`."""
        if not self._looks_at_tensors:
            return kernel

        def observed_wait(keyset: Any, given: Any) -> Any:
            result = kernel(keyset, given)
            if self._by_memory:
                self._waited_for(given)
            return result

        skip_in_dynamo(observed_wait.__code__, with_callees=False)
        return observed_wait

    def _begin(
        self, operation: OperationSchema, roles: TensorRoles, hooks: tuple[Hooks, ...], args: tuple[Any, ...]
    ) -> _Pending | None:
        """Call the hooks before an operation; returns it if there are some to call after it."""
        if self._thread.is_inside:
            return None
        self._last_works.pop(get_native_id(), None)
        call = None
        with guard.guarded("hooks"):
            call = self._describe(operation, args)
        if call is None:
            return None
        before, after = self._hooks_for(operation, hooks, call.group)
        known = call.known
        is_root = known.peer < 0 or known.peer == known.rank
        inputs = roles.inputs(args, is_root) if before or self._numerics is not None else ()
        if before:
            self._call(before, replace(known, inputs=inputs))
        outputs = roles.outputs(args, is_root) if after or self._numerics is not None else ()
        if self._numerics is not None and not self._rehearsals.are_on:
            record = None
            with guard.guarded("numerics"):
                record = self._numerics.before(
                    known, call.group, call.channel, call.tag, get_native_id(), inputs, outputs, self._devices
                )
            after = after if record is None else (record, *after)
        return _Pending(known, after, outputs, call.on_host) if after else None

    def _hooks_for(
        self, operation: OperationSchema, hooks: tuple[Hooks, ...], group: GroupState
    ) -> tuple[tuple[Hook, ...], tuple[Hook, ...]]:
        """The functions to call before and after an operation of a group."""
        key = (operation.index, group.name_id)
        found = self._wanted.get(key)
        if found is None:
            wanted = [one for one in hooks if one.wants(group.name, group.rank)]
            before = tuple(one.before_operation for one in wanted if one.before_operation is not None)
            after = tuple(one.after_operation for one in wanted if one.after_operation is not None)
            found = self._wanted[key] = (before, after)
        return found

    def _describe(self, operation: OperationSchema, args: tuple[Any, ...]) -> _Described | None:
        """Describe a call; None for meta and fake tensors, which only pretend to communicate, and unknown groups."""
        group = self._meet(ProcessGroup.unbox(args[operation.group]))
        if group is None:
            return None
        first = next(flat(args[operation.described]), None)
        if first is not None and first.is_meta:
            return None
        device = first.device.type if first is not None else "cpu"
        peer = group.global_rank(args[operation.peer]) if operation.peer >= 0 else -1
        tag = args[operation.tag] & MAX_TAG if operation.tag >= 0 else 0
        channel = group.channel_of(device)
        counter = channel.messages(operation.name == "send", peer, tag) if operation.point_to_point else channel.counter
        sites = group.recorder.call_sites
        site = sites.find(2)
        reduce_op = number_of_reduce_op(args[operation.reduce_op]) if operation.reduce_op >= 0 else -1
        known = OperationCall(
            operation=operation.name,
            group=group.name,
            sequence=counter[0] + 1,
            rank=group.rank,
            step=group.recorder.step,
            peer=peer,
            reduce_op=REDUCE_OPS.get(reduce_op, ""),
            call_site=sites.describe(site),
        )
        return _Described(known, group, channel, tag, device == "cpu")

    def _call(self, hooks: tuple[Hook, ...], call: OperationCall) -> None:
        """Call hooks; what they raise is the program's."""
        thread = self._thread
        thread.is_inside = True
        try:
            for hook in hooks:
                hook(call)
        finally:
            thread.is_inside = False

    # --- ends --------------------------------------------------------------------------------------------------------

    def _issued(self, pending: _Pending, operation: OperationSchema, args: tuple[Any, ...], result: Any) -> None:
        """Await the end of an operation that the backend has accepted."""
        boxed = result[1] if operation.work > 0 else None if operation.work < 0 else result
        work = None
        with guard.guarded("hooks"):
            # NCCL boxes nothing for a synchronous operation, which runs on the caller's stream.
            work = Work.unbox(boxed) if boxed is not None else None
            if work is not None:
                self._await(pending)
                group = self._meet(ProcessGroup.unbox(args[operation.group]))
                if group is not None and group.coalescing is not None:
                    self._blocks.setdefault(group.name_id, []).append(pending)
                else:
                    self._by_work_of([pending], work)
                if not pending.on_host:
                    self._last_works[get_native_id()] = work
                return
        if work is None:  # the call blocked until the operation was over, or what comes next on the stream waits for it
            self._ended(pending)

    def _await(self, pending: _Pending) -> None:
        self._pending[pending] = None
        for reference in pending.outputs:
            tensor = reference()
            if tensor is not None and tensor.layout is torch.strided:
                self._by_memory[tensor.data_ptr()] = pending
        while len(self._pending) > MAX_PENDING:
            oldest, _ = self._pending.popitem(last=False)
            self._forget(oldest)

    def _by_work_of(self, several: list[_Pending], work: Any) -> None:
        """Have a wait for a Work end operations. Its object lives as long as the program can wait for it."""
        if work.__class__ not in self._patched:
            self._patch(work.__class__)
        if len(self._by_work) > MAX_PENDING:
            self._by_work = {key: known for key, known in self._by_work.items() if known[0]() is not None}
        self._by_work[id(work)] = reference = (weakref.ref(work), several)
        for pending in several:
            pending.work = reference[0]

    def _patch(self, cls: type[Any]) -> None:
        for owner in cls.__mro__:
            if owner not in self._patched and "wait" in vars(owner):
                self._patches.replace(owner, "wait", self._make_wait)
            self._patched.add(owner)

    def _make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            self._last_works.pop(get_native_id(), None)
            known = self._by_work.pop(id(work), None)
            if known is not None and known[0]() is work:
                for pending in known[1]:
                    self._ended(pending)
            return result

        return observed_wait

    def _make_end_coalescing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end_coalescing(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            work = original(group, *args, **kwargs)
            several: list[_Pending] = []
            with guard.guarded("hooks"):
                state = self._meet(group)
                several = self._blocks.pop(state.name_id, several) if state is not None else several
                if several and work is not None:
                    self._by_work_of(several, work)
            if work is None:
                for pending in several:
                    self._ended(pending)
            return work

        return end_coalescing

    def _waited_for(self, given: Any) -> None:
        """End the operations that write to the memory of some tensors."""
        several: list[_Pending | None] = []
        with guard.guarded("hooks"):
            several = [self._by_memory.get(tensor.data_ptr()) for tensor in flat(given) if not tensor.is_meta]
        for pending in several:
            if pending is not None:
                self._ended(pending)

    def _settle(self, optimizer: Optimizer) -> None:
        """End what backward passes have issued and C++ waits for: that is over where an optimizer steps."""
        self._last_works.clear()
        for pending in [one for one in self._pending if one.in_backward]:
            if pending.may_be_awaited():
                pending.in_backward = False  # what it writes to may be written to again by the next step
            else:
                self._ended(pending)

    def _forget(self, pending: _Pending) -> None:
        for reference in pending.outputs:
            tensor = reference()
            if tensor is not None and self._by_memory.get(tensor.data_ptr()) is pending:
                del self._by_memory[tensor.data_ptr()]

    def _ended(self, pending: _Pending) -> None:
        """Call the hooks of an operation that is over, once, unless the program has dropped all of its outputs."""
        if self._pending:
            self._pending.pop(pending, None)
        self._forget(pending)
        outputs = tuple([tensor for reference in pending.outputs if (tensor := reference()) is not None])
        hooks, pending.hooks = pending.hooks, ()
        if hooks and (outputs or not pending.outputs):
            self._call(hooks, replace(pending.call, outputs=outputs))
