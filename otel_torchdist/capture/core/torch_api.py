"""The private parts of torch's core that capture uses, typed as Any, and the patching of torch.

`capture/upstream` names each of them, with the reason and with what is lost without it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any, Final, TypeAlias

import torch
from torch.compiler import is_dynamo_compiling
from torch.distributed import ProcessGroup, Work, distributed_c10d
from torch.optim import Optimizer

from otel_torchdist import guard
from otel_torchdist.capture.upstream import compiled, core, training
from otel_torchdist.capture.upstream.symbol import TorchSymbol

ctypes.pythonapi.PyInstanceMethod_New.restype = ctypes.py_object

OptimizerHook: TypeAlias = Callable[[Optimizer, Any, Any], None]

_torch: Any = torch
_c10d: Any = distributed_c10d
_bindings: Any = sys.modules[core.BINDINGS]

c10d: Final = _c10d
"""The module whose globals create and register process groups."""
DISPATCH_KEY: Final[Any] = core.DISPATCH_KEY.find().BackendSelect
"""Dispatch key of our kernels. They run before any backend's, for tensors on any device."""
_KERNEL_KEYS: Final = ("PrivateUse1", "CPU", "CUDA", "XPU", "MTIA", "CompositeExplicitAutograd")
"""Dispatch keys with kernels of `c10d` and `symm_mem`."""
REDUCE_OPS: Final[dict[int, str]] = {
    int(number): str(name).lower() for name, number in getattr(core.REDUCE_OP_TYPES.find(), "__members__", {}).items()
}
_MAX_PREFIXES: Final = 16
"""Maximum depth of nested `PrefixStore`s."""
_wait: Any = vars(Work)["wait"]
_INSTANCE_METHOD: Final[Any] = _wait.__class__
CHECKPOINT_LOGGER: Final = "c10d-NullHandler-dcp_logger"
"""The logger of `torch.distributed.checkpoint`. The name avoids importing the package, which takes half a second."""
GRAD_SCALER: Final[Any] = _torch.amp.GradScaler
"""Base class of the gradient scalers for all devices and for FSDP."""
_NO_CODE: Final = (lambda: None).__code__
_makes_step: Any = getattr(training.HOOKED_STEP.find(), "__code__", _NO_CODE)
_ANNOTATE: Final = "__annotate__"
"""Name of the function that computes annotations, which Python 3.14 compiles beside each annotated function."""
HOOKED_STEP: Final[CodeType] = next(
    (code for code in _makes_step.co_consts if isinstance(code, CodeType) and code.co_name != _ANNOTATE), _NO_CODE
)
"""Code of the function with which torch replaces the `step` of every optimizer class."""
LIST: Final[Any] = list
"""`list`, for `type(x) is LIST`. With `list` itself, a type checker narrows Any to a list of unknowns."""
TUPLE: Final[Any] = tuple
DICT: Final[Any] = dict


def _no_label() -> str:
    return ""


comm_label: Final[Callable[[], str]] = core.COMM_LABEL.find() or _no_label
"""Returns the label that `dist.record_comm` set on this thread; '' in torch 2.8."""


def _no_backward() -> int:
    return -1


backward_id: Final[Callable[[], int]] = core.BACKWARD_ID.find() or _no_backward
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
    listed: Any = core.OPS_OF_KEY.find()
    if listed is None:
        all_names: Any = core.OP_NAMES.find()
        return {name for name in (all_names() if all_names is not None else ()) if name.startswith(prefix)}
    return {name for key in _KERNEL_KEYS for name in listed(key) if name.startswith(prefix)}


def redispatch_of(overload: Any) -> Callable[..., Any]:
    """Return the function that calls an operation's next kernel with the remaining key set and the arguments."""
    return core.OVERLOAD_HANDLE.of(overload).redispatch_boxed


def schema_of(overload: Any) -> Any:
    """Return the schema of an operation: its name, and the names and types of its arguments."""
    return core.OVERLOAD_SCHEMA.of(overload)


def has_foreign_kernel(overload: Any, key: str = DISPATCH_KEY.name) -> bool:
    """Return whether another library has registered a kernel at our dispatch key. torch itself has none there."""
    return core.HAS_KERNEL.find()(overload.name(), key)


def remove_library(library: Any) -> None:
    """Remove all kernels of a library from the dispatcher."""
    remove = core.REMOVE_LIBRARY.of(library)
    if remove is not None:
        remove()


_current_stream: Any = core.CUDA_STREAM.find()


def current_cuda_stream(device: int) -> int:
    """Return the handle of the calling thread's current stream on a CUDA device. Requires a CUDA build."""
    return _current_stream(device)


def _registry() -> Any:
    return core.WORLD.find()


def default_group() -> Any:
    """Return the default process group, which must exist."""
    return _torch.distributed.group.WORLD


def known_groups() -> list[Any]:
    """Return the process groups in torch's registry, oldest first."""
    return list(_registry().pg_map)


def backend_and_store(group: Any) -> tuple[str, Any]:
    """Return the configured backend and the store of a group; '' and None if torch's registry lacks it."""
    return _registry().pg_map.get(group) or ("", None)


def without_prefixes(store: Any) -> Any:
    """Return the store inside nested `PrefixStore`s."""
    for _ in range(_MAX_PREFIXES):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            break
        store = inner
    return store


def store_location(store: Any) -> str:
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
    return _registry().pg_group_ranks.get(group)


def backends_with_timeouts() -> list[Any]:
    """Return the backend classes with a method that sets the timeout."""
    classes: list[Any] = [getattr(_bindings, name) for name in dir(_bindings) if name.startswith("ProcessGroup")]
    return [cls for cls in classes if core.SET_TIMEOUT.name in vars(cls)]


def resolve_group(name: str) -> Any:
    """Return the process group that torch has registered under a name; None if this torch cannot look it up.

    Raises:
        RuntimeError: No group has this name.
    """
    resolve = core.RESOLVE_GROUP.find()
    return resolve(name) if resolve is not None else None


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
        if not is_dynamo_compiling():  # Dynamo must find nothing else to trace in this hook
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
    set_strategy, actions, strategy = (symbol.find() for symbol in compiled.SKIPPING)
    if set_strategy is not None and actions is not None and strategy is not None:
        set_strategy(code, strategy(actions.SKIP, actions.SKIP if with_callees else actions.DEFAULT))


def _share_rule(original: Any, function: Any) -> None:
    """Copy the Dynamo rule of a function to its replacement, if Dynamo has built its table of rules.

    Otherwise Dynamo will build the table by name, and finds the replacement.
    """
    table_of: Any = compiled.DYNAMO_RULES.find() if compiled.DYNAMO_RULES.holder is not None else None
    if table_of is None or not table_of.cache_info().currsize:
        return
    table = table_of()
    if original in table:
        table[function] = table[original]


PatchTargets: TypeAlias = Sequence[tuple[Any, TorchSymbol]]
"""Owners and names of attributes that a part replaces or needs."""

_ABSENT: Final = object()


class Patches:
    """The attributes that were replaced, which can be restored in reverse order.

    Attributes:
        are_closed: Whether `replace` does nothing any more.
    """

    def __init__(self) -> None:
        self.are_closed = False
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def replace(
        self,
        owner: Any,
        name: str | TorchSymbol,
        make: Callable[[Any], Any],
        is_traced: bool = False,
        has_rule: bool = False,
        make_native: Callable[[tuple[Any, Any]], Any] | None = None,
    ) -> None:
        """Set `owner.name` to `make(original)`. Do nothing if torch has no such attribute, or after `close`.

        Args:
            owner: A module or a class.
            name: The attribute. A symbol that torch lacks is reported.
            make: Receives the original as a function that takes `self`.
            is_traced: Whether Dynamo may encounter the attribute while tracing, and compiles the original's callees.
            has_rule: As `is_traced`, for a function in Dynamo's table of rules, such as `torch.autograd.backward`. The
                replacement inherits the rule, and is a plain function, because the table holds no other kind.
            make_native: Makes the C method to install, from a pair of the result of `make` and the original.
        """
        if isinstance(name, TorchSymbol):
            name.report_if_missing(owner)
            name = name.name
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
