"""Which calls a user wants to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from otel_torchdist.model.calls import OperationView
from otel_torchdist.model.history import RankHistory


@dataclass(frozen=True, slots=True)
class ExportChoice:
    """Which calls are written. With the defaults, all.

    Attributes:
        kinds: Names of operations, or shell patterns such as `all_*`; empty for all.
        newest: How many calls of each rank, the newest; None for all.
        within_ns: How old a call may be when the newest call of the run is entered; None for any age.
    """

    kinds: tuple[str, ...] = ()
    newest: int | None = None
    within_ns: int | None = None

    def is_of_kind(self, operation: OperationView) -> bool:
        """Whether an operation is of a kind that is wanted."""
        return not self.kinds or _matches(operation.name, self.kinds)

    def starts(self, histories: Sequence[RankHistory]) -> dict[int, int]:
        """By rank, the number of the first record that is recent enough."""
        newest_ns = max(map(_newest_ns, histories), default=0)
        return {history.rank: self._start(history, newest_ns) for history in histories}

    def _start(self, history: RankHistory, newest_ns: int) -> int:
        operations = history.operations
        if self.newest is not None:
            operations = operations[max(len(operations) - self.newest, 0) :]
        if self.within_ns is not None:
            oldest_ns = newest_ns - self.within_ns - history.wall_offset_ns
            operations = tuple(one for one in operations if one.record.entered_ns >= oldest_ns)
        if operations:
            return operations[0].record.number
        return history.operations[-1].record.number + 1 if history.operations else 0


def _newest_ns(history: RankHistory) -> int:
    return history.operations[-1].record.entered_ns + history.wall_offset_ns if history.operations else 0


@lru_cache(maxsize=1_024)
def _matches(name: str, kinds: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, kind) for kind in kinds)
