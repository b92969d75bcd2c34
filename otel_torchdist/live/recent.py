"""The last minute of each rank, kept only while there are visitors: its newest operations, and samples of its counters.

Of what came before the first visitor, the ring still has the newest operations. They are read in small portions, so
that no turn of the reader takes long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from otel_torchdist.live.model import Bar, Sample
from otel_torchdist.model.operations import Operation
from otel_torchdist.tape.reading.batch import Batch, TapeCursor
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.telemetry.metrics.snapshots import RankTimes
from otel_torchdist.world.resolved import ResolvedNames

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
