"""Finds out whether a process ended alone, or whether what has ended it was about to end others as well.

The kernel shows at once that a signal has killed a process, but freeing a large one's memory takes it 10 ms and more,
one with a GPU seconds. So if something ends all ranks, the others are on their way when the first is gone. A launcher
that reacts to an end does so only when it next polls its children, until when it sleeps (torchrun for 0.1 s). One that
does not sleep when its first child ends may have been interrupted between its first signal and the next, on a machine
without a free core: what it kills until it sleeps belongs to the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from otel_torchdist.processes.state import is_killed
from otel_torchdist.tape.identity import process_state, stat_fields

LONGEST_NS: Final = 250_000_000
"""How long a launcher may take for its signals."""
_RUNNABLE: Final = "R"


class Endings:
    """Looks at the processes that are left when one has just ended.

    Attributes:
        is_open: Whether it is to look again soon.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._since_ns = 0

    def begin(self, died_ns: int) -> None:
        """A process has just ended."""
        if not self.is_open:
            self.is_open, self._since_ns = True, died_ns

    def is_another_killed(self, living: Collection[int], was_lowest: bool, now_ns: int) -> bool:
        """Whether one of the others is about to end, too.

        Args:
            living: Ids of the processes that have not ended.
            was_lowest: Whether the one that has ended had the lowest rank of them: launchers signal that first.
            now_ns: The time.
        """
        killed = any(map(is_killed, living))
        is_due = not was_lowest or now_ns - self._since_ns > LONGEST_NS
        if killed or is_due or not any(map(_is_runnable, _parents(living))):
            self.is_open = False
        return killed


def _parents(pids: Collection[int]) -> set[int]:
    parents: set[int] = set()
    for pid in pids:
        try:
            parents.add(int(stat_fields(pid)[1]))
        except OSError:
            continue
    return parents


def _is_runnable(pid: int) -> bool:
    found = process_state(pid)
    return found is not None and found[0] == _RUNNABLE
