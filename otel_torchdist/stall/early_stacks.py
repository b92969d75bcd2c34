"""Checks early what ranks are doing that make no calls for long.

When others have waited for the threshold, it may be over. A rank that is late only because it compiled has done so for
at least the threshold, and so was seen compiling.
"""

from __future__ import annotations

from typing import Final

from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.stall.events import Event, StacksWanted
from otel_torchdist.verdict.compiling import CompileExcuses, last_call_ns
from otel_torchdist.verdict.root_cause import RootFinder
from otel_torchdist.verdict.waits import Wait

LEAST_PAUSE_NS: Final = 1_500_000_000
"""Ranks check for requests once a second, and a new request replaces one that is not answered yet."""


class EarlyStacks:
    """Asks ranks of one run for their stacks whenever they have made no call for three quarters of the threshold."""

    def __init__(self, threshold_ns: int, roots: RootFinder, excuses: CompileExcuses) -> None:
        """Ask four times in three times `threshold_ns`, and report to `excuses` what is compiled."""
        self._pause_ns = max(threshold_ns * 3 // 4, LEAST_PAUSE_NS)
        self._roots = roots
        self._excuses = excuses
        self._asked_ns: dict[int, int] = {}
        self._wait: tuple[int, int] | None = None

    def precede(self, timeout_ns: int) -> None:
        """Ask early enough that it is known where ranks are when a backend gives up after `timeout_ns`."""
        self._pause_ns = min(self._pause_ns, max(timeout_ns * 3 // 4, LEAST_PAUSE_NS))

    def request(self, world: WorldSnapshot, waits: list[Wait]) -> list[Event]:
        """Process a snapshot without a verdict, and the waits that may become stalls soon, longest first."""
        self._asked_ns = {
            view.nonce: max(self._asked_ns.get(view.nonce, 0), view.stacks.asked_ns if view.stacks is not None else 0)
            for view in world.ranks.values()
        }
        self._excuses.note(world)
        due = {view.nonce for view in world.ranks.values() if self._is_due(view, world.taken_ns)}
        due |= {view.nonce for view in self._late(world, waits) if view.alive and view.stopped is None}
        self._asked_ns |= dict.fromkeys(due, world.taken_ns)
        return [StacksWanted(frozenset(due))] if due else []

    def _late(self, world: WorldSnapshot, waits: list[Wait]) -> list[RankView]:
        """Ranks that hold up the longest wait, once per wait, if another of their threads may make calls meanwhile."""
        longest = waits[0].key if waits else None
        if longest is None or longest == self._wait:
            return []
        self._wait = longest
        found = self._roots.find(world, waits[:1], None)
        if found is None or found.kind is not VerdictKind.ABSENT:
            return []
        return [view for view in (world.ranks[rank] for rank in found.ranks) if _calls_on_several_threads(view)]

    def _is_due(self, view: RankView, now_ns: int) -> bool:
        """Whether a rank has made no call and was not asked for the length of the pause, and is not waiting."""
        seen_ns = min(now_ns, view.seen_alive_ns) if view.is_remote else now_ns
        if seen_ns - max(self._asked_ns[view.nonce], last_call_ns(view)) < self._pause_ns:
            return False
        if view.is_over or view.stopped is not None:
            return False
        return not any(view.waits_in(operation) for operation in view.open)


def _calls_on_several_threads(view: RankView) -> bool:
    return len({thread for progress in view.progress.values() for thread in progress.threads}) > 1
