"""Synchronizes with the device around collectives, so that their times are exact. For debugging only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.distributed import ProcessGroup

from otel_torchdist import guard
from otel_torchdist.capture.tensors.ends import tensors_in
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_SYNCHRONIZE

if TYPE_CHECKING:
    from otel_torchdist.capture.core.calls.call import GroupState
    from otel_torchdist.capture.core.calls.schemas import OperationSchema

_ON_HOST: Final = frozenset({"cpu", "meta"})
_logger = logging.getLogger("otel_torchdist")


def _is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


class Synchronizer:
    """Synchronizer of devices around collectives.

    It excludes sends, receives and coalesced operations: waiting for one half of a pair before the other is issued
    would deadlock. It also excludes graph capture, where CUDA forbids synchronization.
    """

    def __init__(
        self,
        find_group: Callable[[ProcessGroup], GroupState | None],
        synchronize: Callable[[int], object] = torch.cuda.synchronize,
        is_capturing: Callable[[], bool] = _is_capturing,
    ) -> None:
        """Initialize the synchronizer.

        Args:
            find_group: Returns the state of a group, or None if nothing can be recorded.
            synchronize: Waits for all enqueued work of a device, without the GIL.
            is_capturing: Returns whether the current stream is being captured into a graph.
        """
        self._find_group = find_group
        self._synchronize = synchronize
        self._is_capturing = is_capturing

    def before(self, operation: OperationSchema, args: tuple[Any, ...]) -> tuple[int, ...]:
        """Wait for the device of an operation. Return the devices to wait for after it, at most one."""
        devices: tuple[int, ...] = ()
        with guard.guarded("synchronized timing"):
            devices = self._devices_of(operation, args)
        self.after(devices)
        return devices

    def after(self, devices: tuple[int, ...]) -> None:
        """Wait for devices. Errors of devices propagate to the program."""
        for device in devices:
            self._synchronize(device)

    def _devices_of(self, operation: OperationSchema, args: tuple[Any, ...]) -> tuple[int, ...]:
        first = next(tensors_in(args[operation.described]), None)
        if operation.point_to_point or first is None or first.device.type in _ON_HOST:
            return ()
        group = self._find_group(ProcessGroup.unbox(args[operation.group]))
        if (group is not None and group.coalescing is not None) or self._is_capturing():
            return ()
        return (first.device.index or 0,)


def warn_of_distortion() -> None:
    """Warn that synchronized timing distorts the program."""
    _logger.warning(
        "%s=true: the host waits for the device before and after each collective. This ends the overlap of computation "
        "and communication, so steps take longer. Use it to measure single operations, "
        "not in production",
        OTEL_PYTHON_TORCHDIST_SYNCHRONIZE,
    )
