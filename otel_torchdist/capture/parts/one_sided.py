"""Records one-sided operations: on symmetric memory, and on windows of a process group.

No Work reports their end, so they are recorded as enqueued, and `UNTRACKED` once the call returns. Members may skip
them, so they are counted in a separate, unaligned group.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.call import OpenCall
from otel_torchdist.capture.core.calls.plans import make_plan
from otel_torchdist.capture.core.calls.schemas import OperationSchema, described_argument
from otel_torchdist.capture.core.calls.signatures import key_of
from otel_torchdist.capture.core.groups.groups import GroupState
from otel_torchdist.capture.core.intervals import RecordedInterval
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import (
    DISPATCH_KEY,
    LIST,
    Patches,
    backward_id,
    dispatcher_overloads,
    has_foreign_kernel,
    redispatch_of,
    remove_library,
    resolve_group,
    skip_in_dynamo,
)
from otel_torchdist.capture.core.torch_api import (
    schema_of as torch_schema_of,
)
from otel_torchdist.capture.upstream import core
from otel_torchdist.model.collectives import Contribution
from otel_torchdist.model.kinds import How
from otel_torchdist.model.names import BESIDE
from otel_torchdist.tape.layout import Word

if TYPE_CHECKING:
    from otel_torchdist.capture.core.recorder import Recorder

_LOCAL: Final = frozenset({"get_remote_tensors", "memcpy_to_multicast_", core.SYMM_MEM_RENDEZVOUS.name})
"""Operations with a group argument that no other rank waits for."""
_NOT_IN_SCHEMA: Final = -1


class OneSided(SessionPart):
    """Recorder of one-sided operations."""

    def __init__(self, find_group: Callable[[ProcessGroup], GroupState | None]) -> None:
        """Initialize without groups. `find_group` returns the state of a group, or None if nothing can be recorded."""
        self._find_group = find_group
        self._one_sided_states: dict[int, tuple[GroupState, GroupState]] = {}

    def begin(
        self, group: ProcessGroup, schema: OperationSchema, args: tuple[Any, ...], peer: int = -1
    ) -> OpenCall | None:
        """Record an operation that is about to be issued. Return None if it is not recorded.

        Args:
            group: Its group.
            schema: The called operation.
            args: Its arguments.
            peer: The peer's rank in the group; -1 if there is none.
        """
        return self._begin(self._one_sided_state, group, schema, args, peer)

    def begin_collective(self, group: ProcessGroup, schema: OperationSchema, args: tuple[Any, ...]) -> OpenCall | None:
        """Record a collective operation that is about to be issued. It is counted among the group's collectives."""
        return self._begin(self._find_group, group, schema, args, -1)

    def _begin(
        self,
        find: Callable[[ProcessGroup], GroupState | None],
        group: ProcessGroup,
        schema: OperationSchema,
        args: tuple[Any, ...],
        peer: int,
    ) -> OpenCall | None:
        entered = time.monotonic_ns()
        plan = interval = None
        counted = False
        try:
            state = find(group)
            if state is None:
                return None
            tensors = args[schema.described]
            shape = key_of(tensors) if type(tensors) is LIST else (tensors.shape, tensors.dtype, tensors.device)
            recorder = state.recorder
            key = (
                schema.name,
                shape,
                False,
                state.global_rank(peer),
                0,
                False,
                "",
                backward_id() >= 0,
                threading.get_native_id(),
                recorder.call_sites.find(3),
            )
            plan = state.plans.get(key) or make_plan(state, key, schema, args)
            if plan is None:
                return None
            plan.channel.counter[0] += 1
            counted = True
            interval = RecordedInterval(plan.tape, entered)
            interval.begin(recorder.step, plan.channel.sequence, plan.tail)
            plan.tape.mark(interval.number, Word.STARTED, 0, How.UNTRACKED)
            return OpenCall(interval.number, entered, plan)
        except BaseException as error:
            if interval is not None:
                interval.tape.complete(interval.number, entered, time.monotonic_ns(), How.ABANDONED)
            if guard.contains("one-sided operation", error):
                return None  # the operation is issued, but not recorded, and keeps its number
            if plan is not None:
                plan.channel.counter[0] -= counted
            raise

    def end(self, call: OpenCall, error: BaseException | None = None) -> None:
        """Record that an operation was issued, or that it raised `error`."""
        self._end(call, How.UNTRACKED, error)

    def end_collective(self, call: OpenCall, error: BaseException | None = None) -> None:
        """Record that all members joined, or that the call was rejected, so that its sequence number is reused."""
        if error is not None:
            call.plan.channel.counter[0] -= 1
        self._end(call, How.CALL, error)

    def _end(self, call: OpenCall, how: How, error: BaseException | None) -> None:
        with guard.guarded("one-sided operation"):
            tape = call.tape
            failure = tape.names.intern(type(error).__qualname__) if error is not None else 0
            how = how if error is None else How.FAILED
            tape.complete(call.number, call.entered_ns, time.monotonic_ns(), how, failure)

    def _one_sided_state(self, group: ProcessGroup) -> GroupState | None:
        state = self._find_group(group)
        if state is None:
            return None
        cached = self._one_sided_states.get(id(group))
        if cached is not None and cached[0] is state:
            return cached[1]
        name = replace(state.name, aligned=False, epoch=BESIDE)
        one_sided = GroupState(state.recorder, group, name, state.group_rank)
        self._one_sided_states[id(group)] = state, one_sided
        return one_sided

    def ends(self, recorder: Recorder) -> None:
        """Drop all groups."""
        self._one_sided_states.clear()

    def forget_in_child(self) -> None:
        """Drop all groups."""
        self._one_sided_states.clear()


class Issuing:
    """Context manager that records the end of the operation that its block issues.

    A wrapper function would add a frame to the tracebacks of users.
    """

    __slots__ = ("_call", "_end")

    def __init__(self, call: OpenCall | None, end: Callable[[OpenCall, BaseException | None], None]) -> None:
        """Initialize with a recorded call; None if the operation is not recorded."""
        self._call = call
        self._end = end

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Record the end."""
        if self._call is not None:
            self._end(self._call, error)


class SymmetricMemory(SessionPart):
    """Kernels for the `symm_mem::*` operations that name a group."""

    def __init__(self, one_sided: OneSided, names: Iterable[str] | None = None) -> None:
        """Initialize without registered kernels.

        Args:
            one_sided: Recorder of the operations.
            names: As for `dispatcher_overloads`.
        """
        self._one_sided = one_sided
        self._names = names
        self._library: Any = None

    def hook(self, patches: Patches) -> None:
        """Register the kernels."""
        self._library = torch.library.Library("symm_mem", "IMPL")
        for schema in symmetric_schemas(self._names):
            if not has_foreign_kernel(schema.overload):
                name = schema.overload.name().partition("::")[2]
                kernel = _make_kernel(schema, self._one_sided)
                self._library.impl(name, kernel, DISPATCH_KEY.name, with_keyset=True)

    def unhook(self) -> None:
        """Remove all kernels."""
        if self._library is not None:
            remove_library(self._library)
        self._library = None


def symmetric_schemas(names: Iterable[str] | None = None) -> list[OperationSchema]:
    """Return the schemas of the currently defined operations on symmetric memory with a group and a tensor.

    Args:
        names: As for `dispatcher_overloads`.
    """
    schemas = [_parse_schema(overload) for overload in dispatcher_overloads("symm_mem", names)]
    return [schema for schema in schemas if schema is not None]


def _parse_schema(overload: Any) -> OperationSchema | None:
    schema = torch_schema_of(overload)
    arguments = schema.arguments
    types = [str(argument.type) for argument in arguments]
    positions = {argument.name: position for position, argument in enumerate(arguments)}
    described = described_argument(positions, types)
    name: str = schema.name.removeprefix("symm_mem::")
    group = positions.get("group_name")
    if group is None or types[group] != "str" or described is None or name in _LOCAL:
        return None
    return schema_of(name.strip("_"), overload, group, described, positions.get("root", _NOT_IN_SCHEMA))


def schema_of(name: str, overload: Any, group: int, described: int, peer: int = -1) -> OperationSchema:
    """Return the schema of an operation that is recorded as enqueued."""
    return OperationSchema(
        index=-1,
        overload=overload,
        name=name,
        group=group,
        described=described,
        reduce_op=-1,
        peer=peer,
        tag=-1,
        async_op=-1,
        work=-1,
        point_to_point=False,
        synchronizing=False,
        contribution=Contribution.ALL,
    )


def _make_kernel(schema: OperationSchema, one_sided: OneSided) -> Callable[..., Any]:
    redispatch = redispatch_of(schema.overload)
    group_index, peer_index = schema.group, schema.peer

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        backend_keys = keyset.remove(DISPATCH_KEY)
        call = None
        with guard.guarded("symmetric memory"):
            if not _is_fake(args[schema.described]):
                peer = args[peer_index] if peer_index >= 0 else -1
                call = one_sided.begin(resolve_group(args[group_index]), schema, args, peer)
        with Issuing(call, one_sided.end):
            return redispatch(backend_keys, *args, **kwargs)

    skip_in_dynamo(kernel.__code__)
    return kernel


def _is_fake(tensors: Any) -> bool:
    """Return whether a call only computes shapes. Then the group may not exist."""
    first = tensors[0] if type(tensors) is LIST and tensors else tensors
    return bool(getattr(first, "is_meta", True))


_NEW_WINDOW: Final = schema_of("new_window", None, 0, 1)
_OPERATIONS: Final = (core.WINDOW_PUT, core.WINDOW_SIGNAL, core.WINDOW_WAIT)
_PEERS: Final = {"put": (1, "dst_rank"), "signal": (0, "peer_rank"), "wait_signal": (0, "peer_rank")}
"""Operations of a window, with position and name of the peer argument."""


class Windows(SessionPart):
    """The windows of process groups, into which ranks put data without the peer's participation (torch 2.15 and later).

    Creating a window is a collective: all members enter it, in the order of their other collectives. Operations on a
    window are recorded as enqueued.
    """

    def __init__(self, one_sided: OneSided) -> None:
        self._one_sided = one_sided
        self._groups: weakref.WeakKeyDictionary[Any, ProcessGroup] = weakref.WeakKeyDictionary()

    def hook(self, patches: Patches, group: Any = ProcessGroup, window: Any = None) -> None:
        """Patch windows if this torch has them.

        Args:
            patches: Replaces attributes, and restores them later.
            group: The class of process groups.
            window: The class of windows; torch's by default.
        """
        patches.replace(group, core.NEW_WINDOW, self._make_new_window)
        owner = core.WINDOW_PUT.holder if window is None else window
        for symbol, name in zip(_OPERATIONS, _PEERS, strict=True):
            patches.replace(owner, symbol, functools.partial(self._make_operation, name))

    def _make_new_window(self, original: Callable[..., Any]) -> Callable[..., Any]:
        one_sided = self._one_sided

        def new_window(group: ProcessGroup, tensor: Any = None) -> Any:
            described = [] if tensor is None else [tensor]
            call = one_sided.begin_collective(group, _NEW_WINDOW, (group, described))
            with Issuing(call, one_sided.end_collective):
                window = original(group, tensor)
            with guard.guarded("window"):
                self._groups[window] = group
            return window

        return new_window

    def _make_operation(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        schema = schema_of(name, None, 0, 1)
        one_sided = self._one_sided

        def operation(window: Any, *args: Any, **kwargs: Any) -> Any:
            call = None
            with guard.guarded("window"):
                group = self._groups.get(window)
                if group is not None:
                    tensor = (args[0] if args else kwargs["tensor"]) if name == "put" else None
                    described = [] if tensor is None else [tensor]
                    call = one_sided.begin(group, schema, (group, described), _peer_of(name, args, kwargs))
            with Issuing(call, one_sided.end):
                return original(window, *args, **kwargs)

        return operation


def _peer_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    position, keyword = _PEERS[name]
    return int(args[position] if len(args) > position else kwargs[keyword])
