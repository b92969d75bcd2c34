"""Between the reader and the visitors of the live page: snapshots one way, the fact that there are visitors the other.

While there are none, the reader looks at one number in each turn, and that is all.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from otel_torchdist.live.model import AgentFacts, LiveRun, LiveSnapshot
from otel_torchdist.live.recent import CATCH_UP_S, RecentPast
from otel_torchdist.stall.events import RunSeen
from otel_torchdist.stall.watch import StallWatch
from otel_torchdist.tape.reading.batch import Batch
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import RunFindings

WATCHED_S: Final = 10.0
"""How long after the last visit snapshots are still published: a page in the background asks less often."""
PUBLISH_S: Final = 0.45
"""Seconds between two snapshots, which bounds the cost whatever the number of visitors."""
MAX_RUNS: Final = 256


class LiveFeed:
    """Hands snapshots from the reader's thread to those of visitors.

    Attributes:
        facts: What does not change.
        is_watched: Whether there was a visitor in the last seconds, as of the last turn.
    """

    def __init__(
        self, facts: AgentFacts, clock: Callable[[], float] = time.monotonic, catch_up_s: float = CATCH_UP_S
    ) -> None:
        """Publish nothing until there is a visitor.

        Args:
            facts: Facts about the agent that do not change.
            clock: Returns the monotonic time in seconds.
            catch_up_s: Seconds of processor time after which a turn leaves the past of further ranks to the next one.
        """
        self.facts = facts
        self._clock = clock
        self._catch_up_s = catch_up_s
        self.is_watched = False
        self._visited_at = float("-inf")
        self._published_at = float("-inf")
        self._snapshot: LiveSnapshot | None = None
        self._past: RecentPast | None = None
        self._unwatched: list[Callable[[], None]] = []

    def when_unwatched(self, forget: Callable[[], None]) -> None:
        """Have something called, on the reader's thread, when there have been no visitors for a while."""
        self._unwatched.append(forget)

    def visit(self) -> LiveSnapshot | None:
        """Return the latest snapshot, on any thread; None if there is none yet. Call it again a little later."""
        self._visited_at = self._clock()
        return self._snapshot

    def observe(self, tape: TapeReader, batch: Batch) -> None:
        """Process what a poll has found, on the reader's thread; called only while `is_watched`."""
        if self._past is not None:
            self._past.observe(tape, batch)

    def end_turn(self, watch: StallWatch, tapes: list[TapeReader], metrics: NodeMetrics, watches: bool) -> None:
        """Publish a snapshot if there are visitors and it is time for one, on the reader's thread."""
        now = self._clock()
        was_watched, self.is_watched = self.is_watched, now - self._visited_at < WATCHED_S
        if not self.is_watched:
            self._snapshot = self._past = None
            for forget in self._unwatched if was_watched else ():
                forget()
            return
        if now - self._published_at < PUBLISH_S:
            return
        self._published_at = now
        self._past = self._past or RecentPast()
        self._past.catch_up(tapes, self._catch_up_s)
        self._snapshot = _snapshot(watch.seen, tapes, metrics, self._past, watches)


def _snapshot(
    seen: Iterable[RunSeen], tapes: Iterable[TapeReader], metrics: NodeMetrics, past: RecentPast, watches: bool
) -> LiveSnapshot:
    by_nonce = {tape.identity.nonce: tape for tape in tapes}
    times, now_ns = metrics.times(), time.monotonic_ns()
    runs = tuple(run for one in seen if (run := _run(one, by_nonce, metrics)) is not None)[-MAX_RUNS:]
    for run in runs:
        for view in run.seen.world.ranks.values():
            if view.nonce in times:
                past.sample(view.nonce, view.step, times[view.nonce], now_ns)
    return LiveSnapshot(
        taken_ns=now_ns,
        wall_ns=time.time_ns(),
        runs=runs,
        bars=past.bars,
        samples=past.samples,
        spans_dropped=metrics.spans_dropped,
        records_lost={nonce: one.records_lost for nonce, one in times.items() if one.records_lost},
        watches=watches,
    )


def _run(seen: RunSeen, tapes: Mapping[int, TapeReader], metrics: NodeMetrics) -> LiveRun | None:
    """Return a run with what its tapes show; None if none of them is read any more."""
    world = seen.world
    tape = next((tapes[view.nonce] for view in world.ranks.values() if view.nonce in tapes), None)
    if tape is None:
        return None
    name = f"{world.run:032x} {world.source}"
    return LiveRun(
        key=hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=6).hexdigest(),
        owner=tape.owner,
        directory=tape.path.parent.name,
        world_size=tape.identity.world_size,
        seen=seen,
        findings=metrics.findings(world.run) if world.run else RunFindings(),
    )
