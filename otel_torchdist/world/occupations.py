"""What the threads of a rank are in besides recorded operations: C++ code that waits, and groups that they share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.kinds import ActivityKind, Flag, RecordKind
from otel_torchdist.model.occupations import Engagement, Occupation, SharedGroup
from otel_torchdist.model.operations import BLOCKING, RAISED, Operation
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.tape.status import TapeStatus
from otel_torchdist.world.resolved import ResolvedNames

# ----------------------------------------------------------------------------------------------------------------------
# What threads of a rank are in that may wait for operations without any record of it: in C++, or through a device.


def occupations_of(tape: TapeReader, status: TapeStatus) -> tuple[Occupation, ...]:
    """What the threads of a rank are in; `status` is that of its tape."""
    found = [
        Occupation(Engagement.OPTIMIZER_STEP, one.thread, one.entered_ns)
        for one in tape.open_activities()
        if one.kind is ActivityKind.OPTIMIZER_STEP
    ]
    if status.backward_since_ns:
        found.append(Occupation(Engagement.BACKWARD, status.backward_thread, status.backward_since_ns))
    if status.future_since_ns:
        found.append(Occupation(Engagement.FUTURE, status.future_thread, status.future_since_ns))
    return tuple(found)


# --- Groups whose collectives two threads of a rank call, in an order that is a matter of chance ----------------------
# Backends pair the calls of a group in the order in which each rank makes them, whatever they are. If two threads make
# them, a rank may be in the call of one where another rank is in that of the other: the sum of one is added to that of
# the other, or both wait forever. Two things show it: both threads of a rank are blocked in calls at the same time, or
# threads that run different functions have made the same call on two ranks. Operations in flight show nothing: they
# were called one after the other, as DDP's are.


MAX_GROUPS: Final = 64
CERTAIN: Final = 2
"""How often it must have happened where nothing stalls: once may be the end of a thread that another one waits for."""
_GLOO: Final = "gloo"
_NO_BLOCKING_COLLECTIVE: Final = int(Flag.ASYNC | Flag.POINT_TO_POINT | Flag.COALESCED | Flag.ON_DEVICE)
_BLOCKED: Final = (*BLOCKING, *RAISED)
_OF_BACKENDS: Final = re.compile("[,:]")


class SharedGroups:
    """Finds such groups among the calls of one rank.

    Attributes:
        shown: What it has found.
    """

    def __init__(self, resolved: ResolvedNames) -> None:
        """Resolve names with `resolved`."""
        self._resolved = resolved
        self._last: dict[int, Operation] = {}
        self._found: dict[int, SharedGroup] = {}
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
        known = self._found.get(operation.group)
        if known is None and len(self._found) >= MAX_GROUPS:
            return
        if known is not None and known.times >= CERTAIN:
            return
        found = shared_by(self._resolved.operation(before), self._resolved.operation(operation))
        if found is not None:
            self._found[operation.group] = found if known is None else replace(found, times=known.times + 1)
            self.shown = tuple(self._found.values())


def shared_by(first: OperationView, second: OperationView) -> SharedGroup | None:
    """The group in which two calls have met; None if its backend orders calls by itself, or if it pairs nothing."""
    group = first.group
    if group is None or len(group.members) < 2 or _GLOO not in _OF_BACKENDS.split(group.name.backend):
        return None
    return SharedGroup(
        group.key,
        (first.name, second.name),
        (first.call_site, second.call_site),
        second.record.step,
        (first.caller, second.caller),
    )


def blocked_pairs(waiting: Collection[OperationView]) -> Iterator[tuple[OperationView, OperationView]]:
    """Yield pairs of collectives of one group in which two threads of a rank wait now."""
    first: dict[str, OperationView] = {}
    for operation in waiting:
        channel, record = operation.operation_id.channel, operation.record
        if channel.is_point_to_point or channel.kind is not RecordKind.OPERATION or int(record.flags) & Flag.ON_DEVICE:
            continue
        other = first.setdefault(channel.group, operation)
        if 0 != other.record.thread != record.thread != 0:
            yield other, operation


def _overlap(one: Operation, other: Operation) -> bool:
    """Whether two calls that block their threads were in progress at the same time; others' ends are less exact."""
    if one.completed_ns is None or other.completed_ns is None:
        return False
    if one.how not in _BLOCKED or other.how not in _BLOCKED:
        return False
    return max(one.entered_ns, other.entered_ns) < min(one.completed_ns, other.completed_ns)
