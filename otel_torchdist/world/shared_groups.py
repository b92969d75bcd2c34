"""Groups of gloo's in whose collectives two threads of a rank were at the same time.

gloo pairs the calls of a group in the order in which each rank makes them, whatever they are. If two threads make them,
that order is a matter of chance, and the sum of one may be added to that of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_torchdist.tape.ends import BLOCKING
from otel_torchdist.tape.layout import Flag, RecordKind
from otel_torchdist.tape.names.model import CallSiteName
from otel_torchdist.tape.records.operations import Operation
from otel_torchdist.world.calls import OperationView
from otel_torchdist.world.resolved import ResolvedNames

MAX_GROUPS: Final = 64
CERTAIN: Final = 2
"""How often it must have happened: once may be the end of a thread that another one waits for."""
_GLOO: Final = "gloo"
_NO_BLOCKING_COLLECTIVE: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED | Flag.ON_DEVICE)


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """A group that two threads use at the same time.

    Attributes:
        group: Its key.
        operations: The two operations that met last.
        call_sites: Where they were called.
        step: The rank's step.
    """

    group: str
    operations: tuple[str, str]
    call_sites: tuple[CallSiteName | None, CallSiteName | None]
    step: int


class SharedGroups:
    """Finds such groups among the calls of one rank.

    Attributes:
        shown: What it has found.
    """

    def __init__(self, resolved: ResolvedNames) -> None:
        """Resolve names with `resolved`."""
        self._resolved = resolved
        self._last: dict[int, Operation] = {}
        self._counts: dict[int, int] = {}
        self.shown: tuple[SharedGroup, ...] = ()

    def ended(self, operation: Operation) -> None:
        """Take an operation that has ended; called for each, so what most of them are comes first."""
        before = self._last.get(operation.group)
        if before is None or before.thread == operation.thread:
            if int(operation.flags) & _NO_BLOCKING_COLLECTIVE == 0 and operation.kind is RecordKind.OPERATION:
                self._last[operation.group] = operation
            return
        if int(operation.flags) & _NO_BLOCKING_COLLECTIVE or operation.kind is not RecordKind.OPERATION:
            return
        self._last[operation.group] = operation
        if _overlap(before, operation):
            self._count(before, operation)

    def _count(self, before: Operation, operation: Operation) -> None:
        count = self._counts[operation.group] = self._counts.get(operation.group, 0) + 1
        if count != CERTAIN or len(self.shown) >= MAX_GROUPS:
            return
        views = self._resolved.operation(before), self._resolved.operation(operation)
        group = views[0].group
        if group is not None and group.name.backend == _GLOO and len(group.members) > 1:
            self.shown += (_shared(group.key, *views),)


def _shared(group: str, first: OperationView, second: OperationView) -> SharedGroup:
    sites = first.call_site, second.call_site
    return SharedGroup(group, (first.name, second.name), sites, second.record.step)


def _overlap(one: Operation, other: Operation) -> bool:
    """Whether two calls that block their threads were in progress at the same time; others' ends are less exact."""
    if one.completed_ns is None or other.completed_ns is None:
        return False
    if one.how not in BLOCKING or other.how not in BLOCKING:
        return False
    return max(one.entered_ns, other.entered_ns) < min(one.completed_ns, other.completed_ns)
