"""Which waits are stalls: the threshold, what a call site is used to, and what the user wants left alone."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Final

from otel_torchdist.stall.verdict import Doubt, Verdict, VerdictKind
from otel_torchdist.stall.waits import Wait
from otel_torchdist.stall.world import OperationView, RankView, WorldSnapshot

_NOT_EXCUSED: Final = (VerdictKind.MISMATCHED, VerdictKind.DEAD)
"""No rank expects these."""
_CIRCLES: Final = (Doubt.CYCLE, Doubt.THREADS)


class StallRules:
    """What counts as a stall.

    Attributes:
        threshold_ns: The age at which an open operation is stalled at the earliest.
        compares_calls: Whether calls are compared between ranks where nothing stalls.
    """

    def __init__(self, threshold_ns: int, ignored: Sequence[str] = (), compares_calls: bool = True) -> None:
        """Set the rules.

        Args:
            threshold_ns: See above.
            ignored: Patterns as in `fnmatch`; an operation is left alone whose name, group, label or call site (as
                `evaluate.py:run`) matches one.
            compares_calls: See above.
        """
        self.threshold_ns = threshold_ns
        self.compares_calls = compares_calls
        self._ignored = tuple(ignored)

    def is_stalled(self, wait: Wait, age_ns: int) -> bool:
        """Whether a wait of this age is longer than it may be."""
        if age_ns < max(self.threshold_ns, wait.operation.patience_ns):
            return False
        return not self.is_left_alone(wait)

    def is_left_alone(self, wait: Wait) -> bool:
        """Whether a wait is none of those that the user wants to hear of."""
        return bool(self._ignored) and self._is_ignored(wait.operation)

    def _is_ignored(self, operation: OperationView) -> bool:
        names = [operation.name, operation.label]
        if operation.group is not None:
            names.append(operation.group.label)
        if operation.call_site is not None:
            names.append(f"{PurePath(operation.call_site.file).name}:{operation.call_site.function}")
        return any(fnmatchcase(name, pattern) for name in names if name for pattern in self._ignored)


def is_expected(world: WorldSnapshot, verdict: Verdict) -> bool:
    """Whether all ranks that hold the others up, or all that wait, have said that it may take this long.

    In a circle each rank holds up all others, so one is enough.
    """
    if verdict.kind in _NOT_EXCUSED:
        return False
    named = [expects(world.ranks[rank], world) for rank in verdict.ranks if rank in world.ranks]
    waiting = [expects(world.ranks[rank], world) for rank in verdict.waiting if rank in world.ranks]
    is_circle = verdict.kind is VerdictKind.CIRCULAR or verdict.doubt in _CIRCLES
    is_announced = any(named) if is_circle else len(named) == len(verdict.ranks) and all(named)
    return (bool(named) and is_announced) or (bool(waiting) and all(waiting))


def expects(view: RankView, world: WorldSnapshot) -> bool:
    """Whether a rank has said that it waits, or lets others wait."""
    return view.alive and view.expects_until_ns > world.taken_ns
