"""Looks early what ranks do that others begin to wait for: by the threshold they may have finished to compile."""

from __future__ import annotations

from otel_torchdist.stall.compiling import CompileExcuses
from otel_torchdist.stall.events import Event, StacksWanted
from otel_torchdist.stall.root_finder import RootFinder
from otel_torchdist.stall.verdict import Verdict, VerdictKind
from otel_torchdist.stall.waits import Wait
from otel_torchdist.stall.world import WorldSnapshot


class EarlyLook:
    """Asks the ranks that hold up the longest wait of one run where they are, once for each such wait."""

    def __init__(self, roots: RootFinder, excuses: CompileExcuses) -> None:
        """Find them by `roots`, and let `excuses` know what they compile."""
        self._roots = roots
        self._excuses = excuses
        self._asked: tuple[int, int] | None = None
        self._asked_ns = 0
        self._verdict: Verdict | None = None

    def look(self, world: WorldSnapshot, waits: list[Wait]) -> list[Event]:
        """Take in a picture, and the waits in it that may become stalls soon, the longest first."""
        if not waits:
            self._verdict = None
            return []
        if waits[0].key == self._asked:
            self._take_answers(world)
            return []
        self._asked, self._asked_ns = waits[0].key, world.taken_ns
        found = self._roots.find(world, waits[:1], None)
        self._verdict = found if found is not None and found.kind is VerdictKind.ABSENT else None
        named = [] if self._verdict is None else [world.ranks[rank] for rank in self._verdict.ranks]
        nonces = frozenset(view.nonce for view in named if view.alive and view.stopped is None)
        return [StacksWanted(nonces)] if nonces else []

    def _take_answers(self, world: WorldSnapshot) -> None:
        verdict = self._verdict
        if verdict is None:
            return
        stacks = [world.ranks[rank].stacks for rank in verdict.ranks if rank in world.ranks]
        if all(one is not None and one.asked_ns >= self._asked_ns and one.threads is not None for one in stacks):
            self._excuses.note(world, verdict)
            self._verdict = None
