"""Detects the ends of observed operations, and calls their hooks once, without holding tensors or Works.

The schema of an operation shows which arguments are sent and which are written. Outputs are kept as weak references,
which live as long as the program or torch's C++ code holds the tensor (such as DDP's buckets). An observed operation
ends when a wait for it returns. If C++ code waits, the optimizer's step is the first point at which all operations of
the backward pass are over.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import get_native_id
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup, Work
from torch.optim import Optimizer

from otel_torchdist import guard
from otel_torchdist.capture.core.torch_api import (
    LIST,
    Patches,
    backward_id,
    hook_before_optimizers,
    schema_of,
    skip_in_dynamo,
)
from otel_torchdist.capture.tensors.hooks import Hook, OperationCall
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.collectives import BARRIERS, RECV, SEND, Waiting, waiting_in

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.calls.schemas import OperationSchema

_IN_PLACE: Final = ("tensor", "tensors")


@dataclass(frozen=True, slots=True)
class TensorRoles:
    """The tensors of one operation.

    Attributes:
        sent: Index of the argument whose values are sent; -1 for none.
        written: Index of the argument that is written; -1 for none.
        sent_by_root: Whether only the root sends values.
        written_by_root: Whether only the root's tensors are written.
    """

    sent: int
    written: int
    sent_by_root: bool
    written_by_root: bool

    def inputs(self, args: tuple[Any, ...], is_root: bool) -> tuple[torch.Tensor, ...]:
        """Return the tensors whose values this rank sends."""
        return () if self.sent < 0 or (self.sent_by_root and not is_root) else tuple(tensors_in(args[self.sent]))

    def outputs(self, args: tuple[Any, ...], is_root: bool) -> tuple[torch.Tensor, ...]:
        """Return the tensors that this rank's operation writes."""
        return (
            () if self.written < 0 or (self.written_by_root and not is_root) else tuple(tensors_in(args[self.written]))
        )


def tensor_roles(operation: OperationSchema) -> TensorRoles:
    """Derive the roles of tensors from an operation's schema. Arguments without `input` or `output` are in place."""
    name, sent, written = operation.name, -1, -1
    for position, argument in enumerate(schema_of(operation.overload).arguments):
        if argument.name.startswith("output") and "Tensor" in str(argument.type):
            written = position
        elif argument.name.startswith("input") and "Tensor" in str(argument.type):
            sent = position
        elif argument.name in _IN_PLACE and name not in BARRIERS:
            sent = -1 if name == RECV else position
            written = -1 if name == SEND else position
    waiting = waiting_in(name)
    return TensorRoles(sent, written, waiting is Waiting.FOR_ROOT, waiting is Waiting.ROOT)


def tensors_in(argument: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument: a tensor, a list, or a list of lists."""
    if type(argument) is not LIST:
        yield argument
        return
    for element in argument:
        yield from tensors_in(element)


MAX_PENDING: Final = 1_024
"""Maximum number of pending operations. Operations that are never waited for must not accumulate."""


class AwaitedOperation:
    """A pending observed operation.

    Attributes:
        call: The argument of hooks, without tensors.
        hooks: Hooks to call after it has ended.
        outputs: Weak references to its outputs.
        in_backward: Whether a backward pass has issued it.
        on_host: Whether it runs on the CPU.
        work: Weak reference to its Work; None without a Work, and before the Work is known.
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
        """Return whether its Work is alive and incomplete, so that the program may still wait for it."""
        work = self.work() if self.work is not None else None
        try:
            if work is None or work.is_completed():
                return False
            # With gloo, C++ waits for the future, which completes just before the Work. NCCL's future proves nothing.
            return not (self.on_host and work.get_future().done())
        except Exception as error:
            guard.pass_on(error)
            return True


class AwaitedEnds:
    """The pending observed operations."""

    def __init__(
        self,
        find_group: Callable[[ProcessGroup], GroupState | None],
        patches: Patches,
        call_hooks: Callable[[tuple[Hook, ...], OperationCall], None],
    ) -> None:
        """Initialize without operations.

        Args:
            find_group: Returns the state of a group, or None if nothing can be recorded. Registers new groups.
            patches: Replaces methods, and restores them later.
            call_hooks: Calls hooks with a completed operation.
        """
        self._find_group = find_group
        self._patches = patches
        self._call_hooks = call_hooks
        self._patched: set[type] = set()
        self._pending: OrderedDict[AwaitedOperation, None] = OrderedDict()
        self._by_work: dict[int, tuple[weakref.ref[Any], list[AwaitedOperation]]] = {}
        self._by_memory: dict[int, AwaitedOperation] = {}
        # The Work of each thread's last operation, until its next call or wait, so that its caller receives the same
        # Python object. Waits are recognized by that object. (`Works` may release a completed Work before its caller
        # has it.)
        self._last_works: dict[int, Any] = {}
        self._blocks: dict[int, list[AwaitedOperation]] = {}

    def hook(self) -> Any:
        """Hook coalescing blocks and optimizer steps. Return the handle of the optimizer hook."""
        self._patches.replace(ProcessGroup, core.END_COALESCING, self._make_end_coalescing)
        skip_in_dynamo(AwaitedEnds.settle.__code__)
        return hook_before_optimizers(self.settle)

    def forget_all(self) -> None:
        """Drop all pending operations."""
        for table in (self._pending, self._by_work, self._by_memory, self._blocks, self._last_works):
            table.clear()

    def call_begins(self) -> None:
        """Release the Work of this thread's last operation."""
        self._last_works.pop(get_native_id(), None)

    @property
    def has_pending_memory(self) -> bool:
        """Whether a wait for tensors may end a pending operation."""
        return bool(self._by_memory)

    def issued(self, pending: AwaitedOperation, operation: OperationSchema, args: tuple[Any, ...], result: Any) -> None:
        """Wait for the end of an operation that the backend has accepted."""
        boxed = result[1] if operation.work > 0 else None if operation.work < 0 else result
        work = None
        with guard.guarded("hooks"):
            # NCCL returns no Work for a synchronous operation, which runs on the caller's stream.
            work = Work.unbox(boxed) if boxed is not None else None
            if work is not None:
                self._await(pending)
                group = self._find_group(ProcessGroup.unbox(args[operation.group]))
                if group is not None and group.coalescing is not None:
                    self._blocks.setdefault(group.name_id, []).append(pending)
                else:
                    self._end_by_work([pending], work)
                self._last_works[get_native_id()] = work
                return
        if work is None:  # the operation is over, or later work on the stream waits for it
            self._end(pending)

    def _await(self, pending: AwaitedOperation) -> None:
        self._pending[pending] = None
        for reference in pending.outputs:
            tensor = reference()
            if tensor is not None and tensor.layout is torch.strided:
                self._by_memory[tensor.data_ptr()] = pending
        while len(self._pending) > MAX_PENDING:
            oldest, _ = self._pending.popitem(last=False)
            self._forget(oldest)

    def _end_by_work(self, operations: list[AwaitedOperation], work: Any) -> None:
        """End operations when a wait for their Work returns. The program waits with the same Python object."""
        if work.__class__ not in self._patched:
            self._patch(work.__class__)
        if len(self._by_work) > MAX_PENDING:
            self._by_work = {key: entry for key, entry in self._by_work.items() if entry[0]() is not None}
        reference = weakref.ref(work)
        self._by_work[id(work)] = reference, operations
        for pending in operations:
            pending.work = reference

    def _patch(self, cls: type[Any]) -> None:
        for owner in cls.__mro__:
            if owner not in self._patched and "wait" in vars(owner):
                self._patches.replace(owner, "wait", self._make_wait)
            self._patched.add(owner)

    def _make_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def observed_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            self._last_works.pop(get_native_id(), None)
            entry = self._by_work.pop(id(work), None)
            if entry is not None and entry[0]() is work:
                for pending in entry[1]:
                    self._end(pending)
            return result

        return observed_wait

    def _make_end_coalescing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end_coalescing(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            work = original(group, *args, **kwargs)
            operations: list[AwaitedOperation] = []
            with guard.guarded("hooks"):
                state = self._find_group(group)
                operations = self._blocks.pop(state.name_id, operations) if state is not None else operations
                if operations and work is not None:
                    self._end_by_work(operations, work)
            if work is None:
                for pending in operations:
                    self._end(pending)
            return work

        return end_coalescing

    def end_by_tensors(self, tensors: Any) -> None:
        """End the operations that write to the memory of these tensors."""
        self._last_works.pop(get_native_id(), None)
        operations: list[AwaitedOperation | None] = []
        with guard.guarded("hooks"):
            operations = [
                self._by_memory.get(tensor.data_ptr()) for tensor in tensors_in(tensors) if not tensor.is_meta
            ]
        for pending in operations:
            if pending is not None:
                self._end(pending)

    def settle(self, optimizer: Optimizer) -> None:
        """End the operations of backward passes that C++ code waits for. They are over when an optimizer steps."""
        self._last_works.clear()
        for pending in [operation for operation in self._pending if operation.in_backward]:
            if pending.may_be_awaited():
                pending.in_backward = False  # the next step may write to the same outputs
            else:
                self._end(pending)

    def _forget(self, pending: AwaitedOperation) -> None:
        for reference in pending.outputs:
            tensor = reference()
            if tensor is not None and self._by_memory.get(tensor.data_ptr()) is pending:
                del self._by_memory[tensor.data_ptr()]

    def _end(self, pending: AwaitedOperation) -> None:
        """Call the hooks of a completed operation once, unless the program has dropped all of its outputs."""
        if self._pending:
            self._pending.pop(pending, None)
        self._forget(pending)
        outputs = tuple([tensor for reference in pending.outputs if (tensor := reference()) is not None])
        hooks, pending.hooks = pending.hooks, ()
        if hooks and (outputs or not pending.outputs):
            self._call_hooks(hooks, replace(pending.call, outputs=outputs))
