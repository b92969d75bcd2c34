"""Registers kernels in torch's dispatcher, which every collective passes, wherever it is called from.

The kernels are registered for `BackendSelect`, which precedes any backend. They redispatch with that key removed.
Kernels for `_c10d_functional::wait_tensor` and `wait_tensors` (torch 2.15 and later) observe the end of functional
collectives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from otel_torchdist import guard
from otel_torchdist.capture.core.c10d.completion import Works
from otel_torchdist.capture.core.c10d.hot_path import HotPath
from otel_torchdist.capture.core.c10d.waits import AFTER, BEFORE, INSIDE
from otel_torchdist.capture.core.calls.schemas import OperationSchema, collective_schemas
from otel_torchdist.capture.core.part import SessionPart
from otel_torchdist.capture.core.torch_api import (
    DISPATCH_KEY,
    has_foreign_kernel,
    redispatch_of,
    remove_library,
    schema_of,
    skip_in_dynamo,
)
from otel_torchdist.capture.upstream import core
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_CAPTURE
from otel_torchdist.model.kinds import How

if TYPE_CHECKING:
    from otel_torchdist.capture.core.c10d.devices import Devices
    from otel_torchdist.capture.core.c10d.native_kernels import NativeKernels
    from otel_torchdist.capture.core.calls.call import OpenCall
    from otel_torchdist.capture.core.torch_api import Patches
    from otel_torchdist.native.library import Library

_logger = logging.getLogger("otel_torchdist")


class KernelWrapper(Protocol):
    """Wrapper of kernels that shows the tensors of operations to observers."""

    def observe(self, operation: OperationSchema, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the kernel of an operation."""
        ...

    def observe_wait(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the kernel of `wait_tensor` or `wait_tensors`."""
        ...


class Dispatcher(SessionPart):
    """The session part that registers kernels for every c10d operation."""

    def __init__(
        self,
        hot_path: HotPath,
        works: Works,
        native: NativeKernels | None = None,
        observed: KernelWrapper | None = None,
        schemas: Iterable[OperationSchema] | None = None,
    ) -> None:
        """Register nothing until `hook`.

        Args:
            hot_path: Called for every operation.
            works: Called for every `wait_tensor`.
            native: Kernels of the native library, if it is in use. They run first and pass on the calls that they do
                not record.
            observed: Calls observers around the kernels. Never combined with native kernels, which call no Python.
            schemas: The operations; all operations by default.
        """
        self._hot_path = hot_path
        self._works = works
        self._native = native
        self._observed = observed
        self._schemas = schemas
        self._key = DISPATCH_KEY.name if native is None else native.python_key
        self._without_ours = _without_our_key if native is None else native.without_python_key
        self._c10d: Any = None
        self._functional: Any = None
        self._conflicts: list[str] = []

    def hook(self, patches: Patches) -> None:
        """Register the kernels."""
        hot_path, native, observed, without_ours = self._hot_path, self._native, self._observed, self._without_ours
        self._c10d = torch.library.Library("c10d", "IMPL")
        self._functional = torch.library.Library(core.FUNCTIONAL_OPS.name, "IMPL")
        for schema in collective_schemas() if self._schemas is None else self._schemas:
            kernel = _make_kernel(schema, hot_path, without_ours, native.offer if native is not None else None)
            if observed is not None:
                kernel = observed.observe(schema, kernel)
            if self._register(self._c10d, schema.overload, kernel) and native is not None:
                native.register(schema)
        for name, wait in _wait_overloads().items():
            make = make_wait_tensor if name == "wait_tensor" else make_wait_tensors
            kernel = make(self._works, hot_path.devices, redispatch_of(wait), without_ours)
            if observed is not None:
                kernel = observed.observe_wait(kernel)
            if self._register(self._functional, wait, kernel) and native is not None:
                native.register_wait(name)
        if self._conflicts:
            _logger.warning(
                "another library has already registered a kernel for %s: %s not recorded",
                " and ".join(self._conflicts), "it is" if len(self._conflicts) == 1 else "they are",
            )  # fmt: skip

    def _register(self, library: Any, overload: Any, kernel: Callable[..., Any]) -> bool:
        if has_foreign_kernel(overload):  # our kernel would hide it
            self._conflicts.append(overload.name())
            return False
        schema = schema_of(overload)
        name = schema.name.partition("::")[2]
        overload_name = schema.overload_name
        qualified = f"{name}.{overload_name}" if overload_name else name
        library.impl(qualified, kernel, self._key, with_keyset=True)
        return True

    def unhook(self) -> None:
        """Remove all kernels."""
        if self._c10d is None:
            return
        if self._native is not None:
            self._native.remove()
        remove_library(self._c10d)
        remove_library(self._functional)
        self._c10d = self._functional = None


def _wait_overloads() -> dict[str, Any]:
    functional: Any = core.FUNCTIONAL_OPS.find()
    waits = {name: getattr(functional, name, None) for name in ("wait_tensor", "wait_tensors")}
    return {name: wait.default for name, wait in waits.items() if wait is not None}  # wait_tensors: torch 2.15


def usable_library(library: Library | None, schemas: Iterable[OperationSchema]) -> Library | None:
    """Return the native library, or None with a warning if another library has kernels at its dispatch key.

    Args:
        library: The native library; None if there is none.
        schemas: The operations to record.
    """
    if library is None:
        return None
    key = library.python_key_name().decode()
    overloads = [*(schema.overload for schema in schemas), *_wait_overloads().values()]
    conflicts = [overload.name() for overload in overloads if has_foreign_kernel(overload, key)]
    if not conflicts:
        return library
    _logger.warning(
        "another library has already registered a kernel for %s where the native library needs one: recording in "
        "Python, which takes longer (%s)",
        " and ".join(conflicts), OTEL_PYTHON_TORCHDIST_CAPTURE,
    )  # fmt: skip
    return None


def _without_our_key(keyset: Any) -> Any:
    return keyset.remove(DISPATCH_KEY)


def _make_kernel(
    operation: OperationSchema,
    hot_path: HotPath,
    without_ours: Callable[[Any], Any],
    offer: Callable[[OpenCall, tuple[Any, ...]], None] | None,
) -> Callable[..., Any]:
    redispatch = redispatch_of(operation.overload)
    enter, leave = hot_path.enter, hot_path.leave
    failed, interrupted, not_received = hot_path.failed, hot_path.interrupted, hot_path.not_received
    follow = hot_path.works.follow
    cached_keys: dict[int, Any] = {}

    def kernel(keyset: Any, *args: Any) -> Any:
        keys = keyset.raw_repr()  # looking up an int takes a third of the time of making a key set
        backend_keys = cached_keys.get(keys)
        if backend_keys is None:
            backend_keys = cached_keys[keys] = without_ours(keyset)
        call = None
        is_issued = False
        try:  # a signal handler may raise at any call here
            call = enter(operation, args, keys)
            result = redispatch(backend_keys, *args)  # no signal handler can run between these two calls
            is_issued = True
            if call is None:
                return result
            if call.is_plain:
                follow(call, result, args)
            else:
                leave(call, result, args)
            if offer is not None:
                offer(call, args)
        except BaseException as error:
            if call is None:
                not_received(error)
            elif is_issued:
                interrupted(call)
            else:
                failed(call, error)
            raise
        return result

    skip_in_dynamo(kernel.__code__)
    return kernel


MAX_SWEPT: Final = 1024


def make_wait_tensor(
    works: Works, devices: Devices, redispatch: Callable[..., Any], without_ours: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Make the kernel of `_c10d_functional::wait_tensor`."""
    began, failed = works.waits.began, works.waits.failed

    def wait_tensor(keyset: Any, tensor: Any) -> Any:
        call = works.find_writer(tensor)
        if call is None:
            wait = devices.wait_begins(tensor) if devices.written else None
            has_returned = False
            try:
                result = redispatch(without_ours(keyset), tensor)
                has_returned = True
                return result
            finally:
                if wait is not None:
                    devices.wait_ends(wait, has_returned)
        stage = BEFORE
        result = None
        try:
            began(call)
            stage = INSIDE
            result = redispatch(without_ours(keyset), tensor)
            stage = AFTER
            works.ended(call, How.WAIT)
        except BaseException as error:
            if stage == INSIDE:
                failed(call, error, call.work)
            elif stage == AFTER:
                works.ended(call, How.WAIT)
            raise
        return result

    skip_in_dynamo(wait_tensor.__code__)
    return wait_tensor


def make_wait_tensors(
    works: Works, devices: Devices, redispatch: Callable[..., Any], without_ours: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Make the kernel of `_c10d_functional::wait_tensors`, which records an end for each operation."""

    def wait_tensors(keyset: Any, tensors: Any) -> Any:
        calls = _writing_to(tensors, works)
        wait = devices.wait_for_several_begins(tensors) if devices.written else None
        is_inside = is_over = False
        result = None
        try:  # a signal handler may raise at any call here
            for call in calls:
                works.waits.began(call)
            is_inside = True
            result = redispatch(without_ours(keyset), tensors)
            is_over = True
            _ended(calls, works)
        except BaseException as error:
            if is_over:
                _ended(calls, works)
            elif is_inside:
                _failed(calls, works, error)
            raise
        finally:
            if wait is not None:
                devices.wait_ends(wait, is_over)
        return result

    skip_in_dynamo(wait_tensors.__code__)
    return wait_tensors


def _writing_to(tensors: Any, works: Works) -> list[OpenCall]:
    """Return the open operations that write to any of these tensors, without duplicates."""
    try:
        calls = dict.fromkeys(works.find_writer(tensor) for tensor in tensors)
        return [call for call in calls if call is not None]
    except Exception as error:
        guard.report("wait_tensors", error)
        return []


def _ended(calls: list[OpenCall], works: Works) -> None:
    for call in calls:
        works.ended(call, How.WAIT)


def _failed(calls: list[OpenCall], works: Works, error: BaseException) -> None:
    """Handle a wait for several operations that raised.

    The error does not name its operation. Completed operations are recorded first, with their own results.
    """
    works.sweep(MAX_SWEPT)
    for call in calls:
        works.waits.failed(call, error, call.work)
