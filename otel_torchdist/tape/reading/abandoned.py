"""Finds records that will never be completed, such as those of calls left with an exception before it was recorded.

A synchronous collective blocks its thread. Once that thread has entered another operation, the previous call is over,
and its record, left open, would look like a permanent stall.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

import msgspec

from otel_torchdist.model.kinds import Flag, How, RecordKind
from otel_torchdist.model.operations import Operation

GRACE_NS: Final = 1_000_000_000
"""A backend written in Python may issue operations of its own inside a call, which ends after they do."""
MAX_THREADS: Final = 4096

_LETS_GO: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED | Flag.ON_DEVICE)
"""With any of these flags a call returns before its operation ends."""


class AbandonedCalls:
    """Finds the abandoned calls of one tape."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        self._left_ns: dict[int, int] = {}

    def entered(self, operation: Operation) -> None:
        """Register an operation; called in the order of the tape."""
        if len(self._newest) >= MAX_THREADS:
            self._newest.clear()
        self._newest[operation.thread] = operation.number, operation.entered_ns

    def among(self, open_operations: Iterable[Operation]) -> list[Operation]:
        """Return the abandoned ones of the open operations, as ended when their thread entered its next operation."""
        now_ns = time.monotonic_ns()
        left: dict[int, int] = {}
        found: list[Operation] = []
        for operation in open_operations:
            number, entered_ns = self._newest.get(operation.thread, (0, 0))
            if number <= operation.number or int(operation.flags) & _LETS_GO:
                continue
            if operation.kind is not RecordKind.OPERATION or not operation.thread:
                continue
            left_ns = left[operation.number] = self._left_ns.get(operation.number, entered_ns)
            if now_ns - left_ns >= GRACE_NS:
                found.append(msgspec.structs.replace(operation, completed_ns=left_ns, how=How.ABANDONED))
        self._left_ns = left
        return found
