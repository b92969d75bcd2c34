"""Bounds for how long a finder waits for ranks that have not shown their part of an operation."""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.snapshot import WorldSnapshot

SETTLED_NS: Final = 5_000_000_000
"""How long members are waited for that have not entered an operation, not ended its step, or show no result of it."""


class Patience:
    """Remembers since when operations have been in question."""

    def __init__(self) -> None:
        self._since_ns: dict[OperationId, int] = {}

    def is_over(self, world: WorldSnapshot, operation_id: OperationId) -> bool:
        """Return whether an operation has been in question for so long that no member is waited for any more."""
        return world.taken_ns - self._since_ns.setdefault(operation_id, world.taken_ns) >= SETTLED_NS

    def forget(self, operation_id: OperationId) -> None:
        """Forget an operation that has been reported."""
        self._since_ns.pop(operation_id, None)
