"""The end of functional collectives that are waited for several at once, as torch can from 2.15 on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from otel_torchdist import _guard
from otel_torchdist.capture.torch_api import skip_in_dynamo
from otel_torchdist.tape.layout import How

if TYPE_CHECKING:
    from otel_torchdist.capture.call import Call
    from otel_torchdist.capture.completion import Works
    from otel_torchdist.capture.device import Devices

MAX_SWEPT: Final = 1024


def make_wait_tensors(works: Works, devices: Devices, redispatch: Callable[..., Any], key: Any) -> Callable[..., Any]:
    """The kernel of `_c10d_functional::wait_tensors`: an end for each operation."""

    def wait_tensors(keyset: Any, tensors: Any) -> Any:
        calls = _writing_to(tensors, works)
        wait = devices.wait_for_several_begins(tensors) if devices.written else None
        is_inside = is_over = False
        result = None
        try:  # a signal handler may raise at any call here
            for call in calls:
                works.wait_began(call)
            is_inside = True
            result = redispatch(keyset.remove(key), tensors)
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
                devices.wait_ends(wait)
        return result

    skip_in_dynamo(wait_tensors.__code__)
    return wait_tensors


def _writing_to(tensors: Any, works: Works) -> list[Call]:
    """The open operations that write to any of these tensors, each once."""
    try:
        calls = dict.fromkeys(works.of_tensor(tensor) for tensor in tensors)
        return [call for call in calls if call is not None]
    except Exception as error:
        _guard.report("wait_tensors", error)
        return []


def _ended(calls: list[Call], works: Works) -> None:
    for call in calls:
        works.ended(call, How.WAIT)


def _failed(calls: list[Call], works: Works, error: BaseException) -> None:
    """The wait raised, and does not say for which: those that are found complete have ended well, or say themselves."""
    works.sweep(MAX_SWEPT)
    for call in calls:
        works.wait_failed(call, error, call.work)
