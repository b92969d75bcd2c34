"""Between the reader and the visitors of the live page: snapshots one way, the fact that there are visitors the other.

While there are none, the reader looks at one number in each turn, and that is all.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from otel_torchdist.judge.stall.events import RunSeen
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.world.resolved import ResolvedNames
from otel_torchdist.model.operations import Operation
from otel_torchdist.show.live.live_snapshot import AgentFacts, Bar, LiveRun, LiveSnapshot, Sample
from otel_torchdist.tape.reading.batch import Batch, TapeCursor
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from otel_torchdist.telemetry.metrics.snapshots import RankTimes, RunFindings

MAX_BARS: Final = 16_384
"""Bars of all ranks together, which bounds the memory."""
MOST_OF_A_RANK: Final = 512
LEAST_OF_A_RANK: Final = 16
CATCH_UP_S: Final = 0.01
"""Processor time after which the past of further ranks is left to the next turn."""
SAMPLE_NS: Final = 900_000_000
"""Time between two samples, at least; snapshots come twice a second."""
MAX_SAMPLES: Final = 68
"""A little more than a minute."""


class _RecentOfRank:
    """The newest operations of one tape, and samples of its counters."""

    def __init__(self, tape: TapeReader, most: int) -> None:
        self._names = ResolvedNames(tape.names, tape.identity.rank, tape.identity.world)
        self._most = most
        self.bars: deque[Bar] = deque(maxlen=most)
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, ended: list[Operation]) -> None:
        for operation in ended[-self._most :]:
            if operation.completed_ns is not None:
                view = self._names.operation(operation)
                group = view.operation_id.channel.group
                self.bars.append(Bar(view.name, group, operation.arrived_ns, operation.completed_ns))


class RecentPast:
    """The last minute of all ranks whose tapes are read. Belongs to the reader's thread."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RecentOfRank] = {}

    def observe(self, tape: TapeReader, batch: Batch) -> None:
        """Add what a poll has found, unless it will be read with the tape's past."""
        known = self._ranks.get(tape.identity.nonce)
        if known is not None and batch.ended:
            known.add(batch.ended)

    def catch_up(self, tapes: Iterable[TapeReader], most_s: float = CATCH_UP_S) -> None:
        """Read the past of tapes that are new here, as far as there is time for it, and forget those that are gone."""
        by_nonce = {tape.identity.nonce: tape for tape in tapes}
        for nonce in self._ranks.keys() - by_nonce.keys():
            del self._ranks[nonce]
        most = min(max(MAX_BARS // max(len(by_nonce), 1), LEAST_OF_A_RANK), MOST_OF_A_RANK)
        began = time.thread_time()
        for nonce in [nonce for nonce in by_nonce if nonce not in self._ranks]:
            rank = self._ranks[nonce] = _RecentOfRank(by_nonce[nonce], most)
            rank.add(_newest(by_nonce[nonce], most))
            if time.thread_time() - began > most_s:
                return

    def sample(self, nonce: int, step: int, times: RankTimes, now_ns: int) -> None:
        """Add a sample of a rank's counters, if its past has been read."""
        rank = self._ranks.get(nonce)
        if rank is not None and (not rank.samples or now_ns - rank.samples[-1].at_ns >= SAMPLE_NS):
            rank.samples.append(Sample(now_ns, step, times.communicating_ns, times.blocked_ns, times.overhead_ns))

    @property
    def bars(self) -> Mapping[int, tuple[Bar, ...]]:
        """By nonce, the newest operations that have ended."""
        return {nonce: tuple(rank.bars) for nonce, rank in self._ranks.items()}

    @property
    def samples(self) -> Mapping[int, tuple[Sample, ...]]:
        """By nonce, the samples."""
        return {nonce: tuple(rank.samples) for nonce, rank in self._ranks.items()}


def _newest(tape: TapeReader, most: int) -> list[Operation]:
    """Return the operations that ended among the newest records of a tape, up to where its reader has come."""
    cursor = tape.cursor
    past = tape.another()
    past.resume(TapeCursor(max(cursor.next_number - most, 1), (), 0))
    return past.read_before(cursor).ended


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
