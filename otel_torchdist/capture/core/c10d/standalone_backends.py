"""Records calls to backends that a program creates and calls directly, without a process group.

Trainers that send weights to inference engines do so. These calls do not pass torch's dispatcher, so the methods of the
backend are patched. Each backend is represented by a process group without a backend: a group that has the backend
would keep it, and its connections, alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup, ProcessGroupGloo, ReduceOp

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.schemas import OperationSchema, collective_schemas
from otel_torchdist.capture.core.torch_api import Patches, schema_of
from otel_torchdist.capture.upstream import core

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.hot_path import HotPath
    from otel_torchdist.capture.core.calls.call import OpenCall

_METHODS: Final = (
    *(core.GLOO_ALL_GATHER.name, core.GLOO_REDUCE_SCATTER.name),
    *("allgather", "allreduce", "alltoall", "alltoall_base", "barrier", "broadcast", "gather"),
    *("recv", "reduce", "reduce_scatter", "scatter", "send"),
)
"""Methods of a backend. The dispatcher's operations have the same names, some with a trailing `_`."""
_NO_KEYS: Final = -1
"""Placeholder for the dispatch keys: these calls do not pass the dispatcher."""
_NO_TENSOR: Final = torch.empty(1)
"""Placeholder for the tensor that torch makes for a barrier."""


class StandaloneBackends:
    """The backends that the program created itself; torch creates others for groups and for RPC."""

    def __init__(self, hot_path: HotPath) -> None:
        """Initialize without backends.

        Args:
            hot_path: Records their operations.
        """
        self._hot_path = hot_path
        self._stores: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._groups: weakref.WeakKeyDictionary[Any, ProcessGroup] = weakref.WeakKeyDictionary()

    def hook(self, patches: Patches) -> None:
        """Patch the methods of backends. Called when the program creates its first backend."""
        schemas = {
            schema_of(schema.overload).name.partition("::")[2].removesuffix("_"): schema
            for schema in collective_schemas()
        }
        for name in _METHODS:
            if name in schemas:
                method = _Method(self, self._hot_path, schemas[name])
                patches.replace(ProcessGroupGloo, name, method.make)

    def add(self, backend: Any, store: Any) -> None:
        """Record the calls of a backend, from now on."""
        self._stores[backend] = store

    def group_of(self, backend: Any) -> ProcessGroup | None:
        """Return the group that represents a backend, or None if torch created the backend."""
        store: Any = self._stores.get(backend)
        if store is not None and backend not in self._groups:
            self._groups[backend] = ProcessGroup(store, backend.rank(), backend.size())
        return self._groups.get(backend)


class _UnboxedOp:
    """Stand-in for the boxed reduce op of a dispatched call. Before torch 2.15, Python cannot box one."""

    __slots__ = ("_op",)

    def __init__(self, reduce_op: ReduceOp) -> None:
        self._op: Any = reduce_op.op

    def op(self) -> int:
        return int(self._op)


class _Method:
    """A patched method of backends."""

    def __init__(self, backends: StandaloneBackends, hot_path: HotPath, operation: OperationSchema) -> None:
        self._backends = backends
        self._hot_path = hot_path
        self._operation = operation
        self._arguments = [
            (str(argument.name), str(argument.type)) for argument in schema_of(operation.overload).arguments
        ]
        absent = {"tensor", "sparse_indices"}  # the method does not take them
        self._tensors = sum("Tensor" in kind and name not in absent for name, kind in self._arguments)

    def make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hot_path, operation = self._hot_path, self._operation

        def method(backend: Any, *args: Any, **kwargs: Any) -> Any:
            dispatched: tuple[Any, ...] = ()
            with guard.guarded("a call of a backend"):
                dispatched = self._as_dispatched(backend, args, kwargs)
            if not dispatched:
                return original(backend, *args, **kwargs)
            call: OpenCall | None = None
            is_issued = False
            try:  # a signal handler may raise at any call here
                call = hot_path.enter(operation, dispatched, _NO_KEYS)
                work = original(backend, *args, **kwargs)
                is_issued = True
                if call is not None:
                    hot_path.leave(call, (None, work.boxed()) if operation.work else work.boxed(), dispatched)
            except BaseException as error:
                if call is None:
                    hot_path.not_received(error)
                elif is_issued:
                    hot_path.interrupted(call)
                else:
                    hot_path.failed(call, error)
                raise
            return work

        return method

    def _as_dispatched(self, backend: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments in the form of the dispatcher's operation, or () if the call is not recorded."""
        group = self._backends.group_of(backend)
        described, remaining = args[: self._tensors], [*args[self._tensors :], *kwargs.values()]
        if group is None or len(described) < self._tensors or not all(map(_is_on_cpu, described)):
            return ()
        tensors = iter(described)
        options = next((value for value in remaining if hasattr(value, "timeout")), None)
        numbers = (value for value in remaining if isinstance(value, int))
        splits: Iterator[Any] = (value for value in remaining if type(value) in (list, tuple))
        dispatched: list[Any] = []
        for name, kind in self._arguments:
            match name:
                case "process_group":
                    dispatched.append(group.boxed())
                case "tensor":
                    dispatched.append(_NO_TENSOR)
                case "reduce_op":
                    dispatched.append(_UnboxedOp(_reduce_op(options, remaining)))
                case "root_rank":
                    dispatched.append(options.rootRank if options is not None else next(numbers, 0))
                case "dst" | "src" | "tag":
                    dispatched.append(next(numbers, 0))
                case "output_split_sizes" | "input_split_sizes":
                    dispatched.append(list(next(splits, ())))
                case "sparse_indices" | "root_tensor" | "device_ids":
                    dispatched.append(None)
                case "async_op" | "timeout":  # the last arguments
                    break
                case _:
                    value = next(tensors)
                    dispatched.append([value] if isinstance(value, torch.Tensor) and kind.startswith("List") else value)
        return tuple(dispatched)


def _reduce_op(options: Any, remaining: list[Any]) -> Any:
    reduce_op: Any = next(
        (value for value in remaining if isinstance(value, ReduceOp | ReduceOp.RedOpType)), ReduceOp.SUM
    )
    return ReduceOp(reduce_op) if options is None else options.reduceOp


def _is_on_cpu(argument: Any) -> bool:
    if type(argument) in (list, tuple):
        return all(map(_is_on_cpu, argument))
    return isinstance(argument, torch.Tensor) and argument.is_cpu
