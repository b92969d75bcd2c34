"""Looks what ranks do that call nothing for long: when others have waited for the threshold, it may be over.

A rank that is late for no other reason than that it compiled has done so for the threshold at least, and so was seen.
"""

from __future__ import annotations

from otel_torchdist.stall.compiling import CompileExcuses, last_call_ns
from otel_torchdist.stall.events import Event, StacksWanted
from otel_torchdist.stall.world import RankView, WorldSnapshot


class EarlyLook:
    """Asks ranks of one run where they are each time they have called nothing for three quarters of the threshold."""

    def __init__(self, threshold_ns: int, excuses: CompileExcuses) -> None:
        """Ask four times in three times `threshold_ns`, and let `excuses` know what is compiled."""
        self._pause_ns = threshold_ns * 3 // 4  # it may take a second more until a rank answers
        self._excuses = excuses
        self._asked_ns: dict[int, int] = {}

    def look(self, world: WorldSnapshot) -> list[Event]:
        """Take in a picture of which nothing is reported."""
        self._asked_ns = {
            view.nonce: max(self._asked_ns.get(view.nonce, 0), view.stacks.asked_ns if view.stacks is not None else 0)
            for view in world.ranks.values()
        }
        self._excuses.note(world)
        due = frozenset(view.nonce for view in world.ranks.values() if self._is_due(view, world.taken_ns))
        self._asked_ns |= dict.fromkeys(due, world.taken_ns)
        return [StacksWanted(due)] if due else []

    def _is_due(self, view: RankView, now_ns: int) -> bool:
        """Whether it has called nothing for long, and was not asked for as long either; who waits is not asked."""
        seen_ns = min(now_ns, view.seen_alive_ns) if view.is_afar else now_ns
        if seen_ns - max(self._asked_ns[view.nonce], last_call_ns(view)) < self._pause_ns:
            return False
        if view.is_over or view.stopped is not None:
            return False
        return not any(view.waits_in(operation) for operation in view.open)
