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

from otel_torchdist.job.ancestry import parent_of
from otel_torchdist.processes.state import is_killed
from otel_torchdist.tape.identity import process_state

LONGEST_NS: Final = 250_000_000
"""How long a launcher may take for its signals."""
_RUNNABLE: Final = "R"


def is_any_killed(pids: Collection[int]) -> bool:
    """Whether a signal has killed one of these processes, which have not ended yet."""
    return any(map(is_killed, pids))


def is_launcher_awake(pids: Collection[int]) -> bool:
    """Whether the parent of one of these processes runs, or waits for a core."""
    return any(map(_is_runnable, {parent_of(pid) for pid in pids}))


def _is_runnable(pid: int) -> bool:
    found = process_state(pid)
    return found is not None and found[0] == _RUNNABLE
