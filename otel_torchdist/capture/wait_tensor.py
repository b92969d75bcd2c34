"""Our kernel of `_c10d_functional::wait_tensor`, by which functional collectives end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from otel_torchdist.capture.completion import AFTER, BEFORE, INSIDE, Works
from otel_torchdist.capture.torch_api import skip_in_dynamo
from otel_torchdist.tape.layout import How

if TYPE_CHECKING:
    from otel_torchdist.capture.device import Devices


def make_wait_tensor(works: Works, devices: Devices, redispatch: Callable[..., Any], key: Any) -> Callable[..., Any]:
    """The kernel of `_c10d_functional::wait_tensor`."""

    def wait_tensor(keyset: Any, tensor: Any) -> Any:
        call = works.of_tensor(tensor)
        if call is None:
            wait = devices.wait_begins(tensor) if devices.written else None
            try:
                return redispatch(keyset.remove(key), tensor)
            finally:
                if wait is not None:
                    devices.wait_ends(wait)
        stage = BEFORE
        result = None
        try:
            works.wait_began(call)
            stage = INSIDE
            result = redispatch(keyset.remove(key), tensor)
            stage = AFTER
            works.ended(call, How.WAIT)
        except BaseException as error:
            if stage == INSIDE:
                works.wait_failed(call, error, call.work)
            elif stage == AFTER:
                works.ended(call, How.WAIT)
            raise
        return result

    skip_in_dynamo(wait_tensor.__code__)
    return wait_tensor
