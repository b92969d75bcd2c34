"""The private parts of torch that capture uses, typed as Any, and the patching of torch.

Each name exists in torch 2.8 and in 2.15, unless its comment says otherwise.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, Final, TypeAlias

import torch
from torch.compiler import is_dynamo_compiling
from torch.distributed import ProcessGroup, ReduceOp, Work, distributed_c10d
from torch.optim import Optimizer

from otel_torchdist import guard

ctypes.pythonapi.PyInstanceMethod_New.restype = ctypes.py_object

OptimizerHook: TypeAlias = Callable[[Optimizer, Any, Any], None]

_torch: Any = torch
_c10d: Any = distributed_c10d
_bindings: Any = _torch._C._distributed_c10d

c10d: Final = _c10d
"""The module whose globals create and register process groups."""
DISPATCH_KEY: Final[Any] = _torch._C.DispatchKey.BackendSelect
"""Precedes every backend, for tensors on any device."""
_KERNEL_KEYS: Final = ("PrivateUse1", "CPU", "CUDA", "XPU", "MTIA", "CompositeExplicitAutograd")
"""Dispatch keys with kernels of `c10d` and `symm_mem`."""
REDUCE_OPS: Final[dict[int, str]] = {
    int(number): str(name).lower() for name, number in vars(ReduceOp)["RedOpType"].__members__.items()
}
_MAX_PREFIXES: Final = 16
"""Maximum depth of nested `PrefixStore`s."""
_wait: Any = vars(Work)["wait"]
_INSTANCE_METHOD: Final[Any] = _wait.__class__
CHECKPOINT_LOGGER: Final = "c10d-NullHandler-dcp_logger"
"""The logger of `torch.distributed.checkpoint`. The name avoids importing the package, which takes half a second."""
GRAD_SCALER: Final[Any] = _torch.amp.GradScaler
"""Base class of the gradient scalers for all devices and for FSDP."""
HOOKED_STEP: Final[CodeType] = next(
    constant for constant in Optimizer.profile_hook_step.__code__.co_consts if isinstance(constant, CodeType)
)
"""Code of the function with which torch replaces the `step` of every optimizer class."""
LIST: Final[Any] = list
"""`list`, for `type(x) is LIST`. With `list` itself, a type checker narrows Any to a list of unknowns."""
TUPLE: Final[Any] = tuple
DICT: Final[Any] = dict


def _no_label() -> str:
    return ""


comm_label: Final[Callable[[], str]] = getattr(_bindings, "_get_comm_profiling_name", _no_label)
"""Returns the label that `dist.record_comm` set on this thread; '' in torch 2.8."""


def _no_backward() -> int:
    return -1


backward_id: Final[Callable[[], int]] = getattr(_torch._C, "_current_graph_task_id", _no_backward)
"""Returns the number of the backward pass on this thread, or -1 outside of one. Takes 70 ns."""
SHOWS_BACKWARD: Final = backward_id is not _no_backward
"""Whether torch has `_current_graph_task_id`. Otherwise calls in a backward pass are not recognized."""


def number_of_reduce_op(argument: Any) -> int:
    """Return the key in `REDUCE_OPS` of a c10d operation's reduce op; -1 in torch 2.8, which does not expose it."""
    try:
        return argument.op()
    except AttributeError:
        return -1


def dispatcher_overloads(namespace: str, names: Iterable[str] | None = None) -> list[Any]:
    """Return all operations in a namespace of the dispatcher that have a kernel on some device.

    Args:
        namespace: The namespace, such as `c10d`.
        names: Result of `names_with_kernels` for this namespace and others, to avoid listing them again.
    """
    prefix = f"{namespace}::"
    listed = names_with_kernels(namespace) if names is None else names
    packets = [name.removeprefix(prefix).partition(".")[0] for name in sorted(listed) if name.startswith(prefix)]
    operations: Any = getattr(torch.ops, namespace)
    unique = [getattr(operations, packet) for packet in dict.fromkeys(packets)]
    return [getattr(packet, overload) for packet in unique for overload in packet.overloads()]


def names_with_kernels(*namespaces: str) -> set[str]:
    """Return the names of the operations in namespaces that have a kernel on some device. Takes 3 ms.

    Listing all operations of torch takes 2 MB, which the allocator keeps. Listing single dispatch keys takes 0.3 MB.
    """
    prefix = tuple(f"{namespace}::" for namespace in namespaces)
    listed: Any = getattr(_torch._C, "_dispatch_get_registrations_for_dispatch_key", None)
    if listed is None:
        return {name for name in _torch._C._dispatch_get_all_op_names() if name.startswith(prefix)}
    return {name for key in _KERNEL_KEYS for name in listed(key) if name.startswith(prefix)}


def redispatch_of(overload: Any) -> Callable[..., Any]:
    """Return the function that calls an operation's next kernel with the remaining key set and the arguments."""
    return overload._handle.redispatch_boxed


def has_foreign_kernel(overload: Any, key: str = DISPATCH_KEY.name) -> bool:
    """Return whether another library has registered a kernel at our dispatch key. torch itself has none there."""
    return _torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)


def remove_library(library: Any) -> None:
    """Remove all kernels of a library from the dispatcher."""
    library._destroy()


def current_cuda_stream(device: int) -> int:
    """Return the handle of the calling thread's current stream on a CUDA device. Requires a CUDA build."""
    return _torch._C._cuda_getCurrentRawStream(device)


def default_group() -> Any:
    """Return the default process group, which must exist."""
    return _c10d._get_default_group()


def known_groups() -> list[Any]:
    """Return the process groups in torch's registry, oldest first."""
    return list(_c10d._world.pg_map)


def backend_and_store(group: Any) -> tuple[str, Any]:
    """Return the configured backend and the store of a group; '' and None if torch's registry lacks it."""
    return _c10d._world.pg_map.get(group) or ("", None)


def without_prefixes(store: Any) -> Any:
    """Return the store inside nested `PrefixStore`s."""
    for _ in range(_MAX_PREFIXES):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    return store


def store_place(store: Any) -> str:
    """Return the location of a store, the same for all its clients: `port 29500`, or a file's path; '' if unknown."""
    store = without_prefixes(store)
    for attribute, text in (("port", "port {}"), ("path", "{}")):
        value = getattr(store, attribute, None)
        if isinstance(value, int | str) and value:
            return text.format(value)
    return ""


def text_of_group(group: ProcessGroup, attribute: str) -> str:
    """Return the name or description of a group; '' if it has none."""
    try:
        return str(getattr(group, attribute)).replace("undefined", "")
    except RuntimeError as error:  # without a backend, the group has no name yet
        guard.pass_on(error)
        return ""


def registered_ranks(group: Any) -> dict[int, int] | None:
    """Return the ranks in a group by global rank, or None if the group is not in torch's registry."""
    return _c10d._world.pg_group_ranks.get(group)


def backends_with_timeouts() -> list[Any]:
    """Return the backend classes with a `_set_default_timeout` method."""
    classes: list[Any] = [getattr(_bindings, name) for name in dir(_bindings) if name.startswith("ProcessGroup")]
    return [cls for cls in classes if "_set_default_timeout" in vars(cls)]


def resolve_group(name: str) -> Any:
    """Return the process group that torch has registered under a name.

    Raises:
        RuntimeError: No group has this name.
    """
    return _bindings._resolve_process_group(name)


def hook_optimizers(before: OptimizerHook, after: OptimizerHook) -> list[Any]:
    """Call functions before and after the step of every optimizer. Return handles with a `remove` method.

    Dynamo traces `before`, which must contain nothing to trace: an opaque call there would move the graph break that
    every optimizer has in its step. `after` runs behind that break.
    """
    return [
        _optimizers().register_optimizer_step_pre_hook(before),
        _optimizers().register_optimizer_step_post_hook(opaque_to_dynamo(after)),
    ]


def hook_before_optimizers(before: Callable[[Optimizer], object]) -> Any:
    """Call a function before the step of every optimizer that is not compiled. Return the handle."""

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling():  # Dynamo traces nothing else
            before(optimizer)

    return _optimizers().register_optimizer_step_pre_hook(hook)


def _optimizers() -> Any:
    return __import__("torch.optim.optimizer", fromlist=["register_optimizer_step_post_hook"])


def is_hooked(optimizer: Any) -> bool:
    """Return whether the steps of an optimizer call hooks. A wrapper with the same base class may not."""
    step: Any = getattr(optimizer.__class__, "step", None)
    return getattr(step, "hooked", False)


def is_bindings_method(attribute: Any) -> bool:
    """Return whether a class attribute is a pybind method."""
    return type(attribute) is _INSTANCE_METHOD


def opaque_to_dynamo(function: Callable[..., Any]) -> Any:
    """Wrap a function as an instance method like pybind's.

    Dynamo runs such methods without tracing them. It would trace a Python function, and warn the user about its
    content.
    """
    return ctypes.pythonapi.PyInstanceMethod_New(ctypes.py_object(function))


def skip_in_dynamo(code: Any, with_callees: bool = True) -> None:
    """Make Dynamo run a code object, and usually its callees, without tracing them.

    Traced kernels would add graph breaks and warnings that the user sees. This strategy costs nothing at run time;
    `torch._dynamo.disable` costs 0.8 µs per call.
    """
    from torch._C._dynamo import eval_frame

    frame: Any = eval_frame
    skip, usual = frame._FrameAction.SKIP, frame._FrameAction.DEFAULT
    frame.set_code_exec_strategy(code, frame._FrameExecStrategy(skip, skip if with_callees else usual))


def _share_rule(original: Any, function: Any) -> None:
    """Copy the Dynamo rule of a function to its replacement, if Dynamo has built its table of rules.

    Otherwise Dynamo will build the table by name, and finds the replacement.
    """
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    table_of: Any = getattr(rules, "get_torch_obj_rule_map", None)
    if table_of is None or not table_of.cache_info().currsize:
        return
    table = table_of()
    if original in table:
        table[function] = table[original]


PatchTargets: TypeAlias = Sequence[tuple[Any, str]]
"""Owners and names of attributes that a part replaces or needs."""

_ABSENT: Final = object()


class Patches:
    """The replaced attributes. They are restored in reverse order.

    Attributes:
        are_closed: Whether `replace` does nothing any more.
    """

    def __init__(self) -> None:
        self.are_closed = False
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def replace(
        self,
        owner: Any,
        name: str,
        make: Callable[[Any], Any],
        is_traced: bool = False,
        has_rule: bool = False,
        make_native: Callable[[tuple[Any, Any]], Any] | None = None,
    ) -> None:
        """Set `owner.name` to `make(original)`. Do nothing if torch has no such attribute, or after `close`.

        Args:
            owner: A module or a class.
            name: The attribute.
            make: Receives the original as a function that takes `self`.
            make_native: Makes a C method from the result of `make` and the original, and is used instead.
            is_traced: Whether Dynamo may encounter the attribute while tracing, and compiles the original's callees.
            has_rule: The same for an attribute in Dynamo's table of skipped functions, which holds plain functions.
        """
        original = getattr(owner, name, None)
        if original is None or self.are_closed:
            return
        # The class attribute itself: `getattr` would return a pybind method unbound.
        stored: Any = _stored(owner, name)
        function = make(original)
        skip_in_dynamo(function.__code__, with_callees=not (is_traced or has_rule))
        if has_rule:
            _share_rule(original, function)
        if make_native is not None:
            replacement = make_native((function, original))
        else:
            replacement = opaque_to_dynamo(function) if is_traced or is_bindings_method(stored) else function
        setattr(owner, name, replacement)
        self._undo.append((owner, name, stored, replacement))

    def close(self) -> None:
        """Restore every original, and replace nothing any more."""
        self.are_closed = True
        self.restore()

    def restore(self) -> None:
        """Restore every original, except where other code has replaced our function: ours then passes calls on."""
        while self._undo:
            owner, name, stored, replacement = self._undo.pop()
            if _stored(owner, name) is not replacement:
                continue
            if stored is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, stored)


def _stored(owner: Any, name: str) -> Any:
    return owner.__dict__.get(name, _ABSENT)
