"""The exchange between the reader and visitors of the live page: snapshots, and whether there are any visitors.

Without visitors, the reader only reads one number in each turn.
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
"""Upper bound on the bars of all ranks together, which bounds the memory."""
MAX_BARS_PER_RANK: Final = 512
MIN_BARS_PER_RANK: Final = 16
CATCH_UP_S: Final = 0.01
"""CPU seconds per turn for reading the past records of new ranks. The next turn continues with the remaining ranks."""
SAMPLE_NS: Final = 900_000_000
"""Minimum time between two samples; snapshots are taken twice a second."""
MAX_SAMPLES: Final = 68
"""Samples of a little more than a minute."""


class _RecentOfRank:
    """The newest operations of one tape, and samples of its counters."""

    def __init__(self, tape: TapeReader, max_bars: int) -> None:
        self._names = ResolvedNames(tape.names, tape.identity.rank, tape.identity.world)
        self._max_bars = max_bars
        self.bars: deque[Bar] = deque(maxlen=max_bars)
        self.samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, ended: list[Operation]) -> None:
        for operation in ended[-self._max_bars :]:
            if operation.completed_ns is not None:
                view = self._names.operation(operation)
                group = view.operation_id.channel.group
                self.bars.append(Bar(view.name, group, operation.arrived_ns, operation.completed_ns))


class RecentPast:
    """The last minute of all ranks whose tapes are read. Used only by the reader's thread."""

    def __init__(self) -> None:
        self._ranks: dict[int, _RecentOfRank] = {}

    def observe(self, tape: TapeReader, batch: Batch) -> None:
        """Add the records of a poll. Those of a new tape are left to `catch_up`, which reads them again."""
        recent = self._ranks.get(tape.identity.nonce)
        if recent is not None and batch.ended:
            recent.add(batch.ended)

    def catch_up(self, tapes: Iterable[TapeReader], limit_s: float = CATCH_UP_S) -> None:
        """Read the past of new tapes within a time limit, and forget closed tapes."""
        by_nonce = {tape.identity.nonce: tape for tape in tapes}
        for nonce in self._ranks.keys() - by_nonce.keys():
            del self._ranks[nonce]
        max_bars = min(max(MAX_BARS // max(len(by_nonce), 1), MIN_BARS_PER_RANK), MAX_BARS_PER_RANK)
        began = time.thread_time()
        for nonce in [nonce for nonce in by_nonce if nonce not in self._ranks]:
            rank = self._ranks[nonce] = _RecentOfRank(by_nonce[nonce], max_bars)
            rank.add(_newest(by_nonce[nonce], max_bars))
            if time.thread_time() - began > limit_s:
                return

    def sample(self, nonce: int, step: int, times: RankTimes, now_ns: int) -> None:
        """Add a sample of a rank's counters, if its past has been read."""
        rank = self._ranks.get(nonce)
        if rank is not None and (not rank.samples or now_ns - rank.samples[-1].at_ns >= SAMPLE_NS):
            rank.samples.append(Sample(now_ns, step, times.communicating_ns, times.blocked_ns, times.overhead_ns))

    @property
    def bars(self) -> Mapping[int, tuple[Bar, ...]]:
        """Newest ended operations, by nonce."""
        return {nonce: tuple(rank.bars) for nonce, rank in self._ranks.items()}

    @property
    def samples(self) -> Mapping[int, tuple[Sample, ...]]:
        """Samples, by nonce."""
        return {nonce: tuple(rank.samples) for nonce, rank in self._ranks.items()}


def _newest(tape: TapeReader, count: int) -> list[Operation]:
    """Return the operations that ended among the last `count` records before the position of a tape's reader."""
    cursor = tape.cursor
    past = tape.another()
    past.resume(TapeCursor(max(cursor.next_number - count, 1), (), 0))
    return past.read_before(cursor).ended


WATCHED_S: Final = 10.0
"""Seconds after the last visit for which snapshots are still published: a page in the background polls rarely."""
PUBLISH_S: Final = 0.45
"""Seconds between two snapshots. Bounds the cost for any number of visitors."""
MAX_RUNS: Final = 256


class LiveFeed:
    """Passes snapshots from the reader thread to HTTP handler threads.

    Attributes:
        facts: Constant facts about the agent.
        is_watched: Whether there was a visitor in the last `WATCHED_S` seconds, as of the last turn.
    """

    def __init__(
        self, facts: AgentFacts, clock: Callable[[], float] = time.monotonic, catch_up_s: float = CATCH_UP_S
    ) -> None:
        """Create a feed. It publishes nothing until there is a visitor.

        Args:
            facts: Constant facts about the agent.
            clock: Returns the monotonic time in seconds.
            catch_up_s: See `CATCH_UP_S`.
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
        """Register a function that the reader's thread calls once there have been no visitors for a while."""
        self._unwatched.append(forget)

    def visit(self) -> LiveSnapshot | None:
        """Return the latest snapshot, on any thread; None if there is none yet, so that the caller must retry."""
        self._visited_at = self._clock()
        return self._snapshot

    def observe(self, tape: TapeReader, batch: Batch) -> None:
        """Process the records of a poll, on the reader's thread; called only while `is_watched`."""
        if self._past is not None:
            self._past.observe(tape, batch)

    def end_turn(self, watch: StallWatch, tapes: list[TapeReader], metrics: NodeMetrics, watches: bool) -> None:
        """Publish a snapshot if there are visitors and the last one is old enough, on the reader's thread."""
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
    runs = tuple(run for state in seen if (run := _run(state, by_nonce, metrics)) is not None)[-MAX_RUNS:]
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
        records_lost={nonce: rank.records_lost for nonce, rank in times.items() if rank.records_lost},
        watches=watches,
    )


def _run(run: RunSeen, tapes: Mapping[int, TapeReader], metrics: NodeMetrics) -> LiveRun | None:
    """Return a run with facts from its tapes; None if no tape of the run is read any longer."""
    world = run.world
    tape = next((tapes[view.nonce] for view in world.ranks.values() if view.nonce in tapes), None)
    if tape is None:
        return None
    name = f"{world.run:032x} {world.source}"
    return LiveRun(
        key=hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=6).hexdigest(),
        owner=tape.owner,
        directory=tape.path.parent.name,
        world_size=tape.identity.world_size,
        seen=run,
        findings=metrics.findings(world.run) if world.run else RunFindings(),
    )
