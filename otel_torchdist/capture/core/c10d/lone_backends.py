"""Records the calls of backends that a program makes and calls itself, without a process group.

Trainers that send weights to inference engines do that. Such calls do not pass torch's dispatcher, where all others are
recorded, so the methods of the backend are patched. For each backend there is a process group without a backend, by
which its world is known: a group that has the backend would keep it, and its connections, alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup, ProcessGroupGloo, ReduceOp

from otel_torchdist import guard
from otel_torchdist.capture.core.calls.schemas import OperationSchema, collective_schemas
from otel_torchdist.capture.core.torch_api import Patches

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.hot_path import HotPath
    from otel_torchdist.capture.core.calls.call import OpenCall

_METHODS: Final = (
    *("allgather", "_allgather_base", "allreduce", "alltoall", "alltoall_base", "barrier", "broadcast", "gather"),
    *("recv", "reduce", "reduce_scatter", "_reduce_scatter_base", "scatter", "send"),
)
"""Methods of a backend; the operations of the dispatcher that call them have the same names, some with `_` behind."""
_NO_KEYS: Final = -1
"""Stands for the dispatch keys of a call, which passes no dispatcher."""
_NO_TENSOR: Final = torch.empty(1)
"""Stands for the tensor that torch makes for a barrier."""


class LoneBackends:
    """The backends of this process that torch has not made, for a group or for remote procedure calls."""

    def __init__(self, hot_path: HotPath) -> None:
        """Know none yet.

        Args:
            hot_path: Records their operations.
        """
        self._hot_path = hot_path
        self._stores: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._groups: weakref.WeakKeyDictionary[Any, ProcessGroup] = weakref.WeakKeyDictionary()

    def hook(self, patches: Patches) -> None:
        """Patch the methods of backends, when the first of them has been made."""
        schemas = {
            schema.overload._schema.name.partition("::")[2].removesuffix("_"): schema for schema in collective_schemas()
        }
        for name in _METHODS:
            if name in schemas:
                made = _Method(self, self._hot_path, schemas[name])
                patches.replace(ProcessGroupGloo, name, made.make)

    def add(self, backend: Any, store: Any) -> None:
        """Follow a backend that was made with a store."""
        self._stores[backend] = store

    def group_of(self, backend: Any) -> ProcessGroup | None:
        """The group that stands for the world of a backend; None for one that torch has made."""
        store: Any = self._stores.get(backend)
        if store is not None and backend not in self._groups:
            self._groups[backend] = ProcessGroup(store, backend.rank(), backend.size())
        return self._groups.get(backend)


class _UnboxedOp:
    """Reads as the boxed reduce op of a dispatched call; torch before 2.15 cannot box one."""

    __slots__ = ("_op",)

    def __init__(self, reduce_op: ReduceOp) -> None:
        self._op: Any = reduce_op.op

    def op(self) -> int:
        return int(self._op)


class _Method:
    """A method of backends that calls an operation."""

    def __init__(self, backends: LoneBackends, hot_path: HotPath, operation: OperationSchema) -> None:
        self._backends = backends
        self._hot_path = hot_path
        self._operation = operation
        self._arguments = [(str(one.name), str(one.type)) for one in operation.overload._schema.arguments]
        known = {"tensor", "sparse_indices"}
        self._tensors = sum("Tensor" in kind and name not in known for name, kind in self._arguments)

    def make(self, original: Callable[..., Any]) -> Callable[..., Any]:
        hot_path, operation = self._hot_path, self._operation

        def method(backend: Any, *args: Any, **kwargs: Any) -> Any:
            given: tuple[Any, ...] = ()
            with guard.guarded("a call of a backend"):
                given = self._given(backend, args, kwargs)
            if not given:
                return original(backend, *args, **kwargs)
            call: OpenCall | None = None
            is_issued = False
            try:  # a signal handler may raise at any call here
                call = hot_path.enter(operation, given, _NO_KEYS)
                work = original(backend, *args, **kwargs)
                is_issued = True
                if call is not None:
                    hot_path.leave(call, (None, work.boxed()) if operation.work else work.boxed(), given)
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

    def _given(self, backend: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments as the dispatcher's operation takes them; () if the call is not recorded."""
        group = self._backends.group_of(backend)
        described, rest = args[: self._tensors], [*args[self._tensors :], *kwargs.values()]
        if group is None or len(described) < self._tensors or not all(map(_is_on_cpu, described)):
            return ()
        tensors = iter(described)
        options = next((one for one in rest if hasattr(one, "timeout")), None)
        numbers = (one for one in rest if isinstance(one, int))
        splits: Iterator[Any] = (one for one in rest if type(one) in (list, tuple))
        found: list[Any] = []
        for name, kind in self._arguments:
            match name:
                case "process_group":
                    found.append(group.boxed())
                case "tensor":
                    found.append(_NO_TENSOR)
                case "reduce_op":
                    found.append(_UnboxedOp(_reduce_op(options, rest)))
                case "root_rank":
                    found.append(options.rootRank if options is not None else next(numbers, 0))
                case "dst" | "src" | "tag":
                    found.append(next(numbers, 0))
                case "output_split_sizes" | "input_split_sizes":
                    found.append(list(next(splits, ())))
                case "sparse_indices" | "root_tensor" | "device_ids":
                    found.append(None)
                case "async_op" | "timeout":  # they follow all others
                    break
                case _:
                    one = next(tensors)
                    found.append([one] if isinstance(one, torch.Tensor) and kind.startswith("List") else one)
        return tuple(found)


def _reduce_op(options: Any, rest: list[Any]) -> Any:
    given: Any = next((one for one in rest if isinstance(one, ReduceOp | ReduceOp.RedOpType)), ReduceOp.SUM)
    return ReduceOp(given) if options is None else options.reduceOp


def _is_on_cpu(argument: Any) -> bool:
    if type(argument) in (list, tuple):
        return all(map(_is_on_cpu, argument))
    return isinstance(argument, torch.Tensor) and argument.is_cpu
