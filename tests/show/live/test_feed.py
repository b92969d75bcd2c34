"""What the reader publishes for the live page: only while there are visitors, and bounded."""

from __future__ import annotations

import gc
import inspect
from pathlib import Path

import pytest

from otel_torchdist.config import Config
from otel_torchdist.judge.stall.watch import StallWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.show.live.feed import WATCHED_S, LiveFeed
from otel_torchdist.show.live.site import LivePage, live_site
from otel_torchdist.telemetry.metrics.node import NodeMetrics
from tests.support.tapes.fake_tape import SECOND, FakeTape
from tests.support.worlds.live_pages import FACTS


class Reading:
    """A reader's turns over some tapes, as `Reader` takes them.

    Attributes:
        feed: The feed under test.
        tapes: The tapes.
        now_s: What the feed's clock shows.
    """

    def __init__(self, directory: Path, size: int, **options: float) -> None:
        self.now_s = 0.0
        self.feed = LiveFeed(FACTS, lambda: self.now_s, **options)
        self.tapes = [FakeTape(directory, rank, size) for rank in range(size)]
        self.metrics = NodeMetrics()
        self._watch = StallWatch(StallRules(10 * SECOND))
        self._ranks = {}
        for tape in self.tapes:
            self._watch.follow(tape.reader)
            self._ranks[tape.reader.identity.nonce] = self.metrics.track(tape.reader)

    def turn(self, after_s: float = 1.0) -> None:
        """Take a turn."""
        self.now_s += after_s
        for tape in self.tapes:
            reader = tape.reader
            batch, nonce = reader.poll(), reader.identity.nonce
            self._watch.observe(nonce, batch)
            self._ranks[nonce].consume(batch, reader.status(), 0)
            if self.feed.is_watched:
                self.feed.observe(reader, batch)
        self._watch.check(1)
        self.feed.end_turn(self._watch, [tape.reader for tape in self.tapes], self.metrics, True)

    def bars(self) -> dict[int, int]:
        """How many operations are published of each rank."""
        snapshot = self.feed.visit()
        assert snapshot is not None
        return {tape.reader.identity.rank: len(snapshot.bars[tape.reader.identity.nonce]) for tape in self.tapes}


@pytest.fixture
def reading(memory: Path) -> Reading:
    """Two tapes."""
    return Reading(memory, 2)


def test_nothing_without_visitors(reading: Reading) -> None:
    """Without a visitor no snapshot is made; after the last one what was kept is dropped, compressed or not."""
    site = live_site(Config(), reading.feed)
    assert site is not None and isinstance(site.live, LivePage)
    reading.turn()
    assert not reading.feed.is_watched
    assert reading.feed.visit() is None
    reading.turn()
    assert reading.feed.is_watched
    snapshot = reading.feed.visit()
    assert snapshot is not None
    document = site.live.document({}, None)
    packed = site.packed.of(document)
    assert site.packed.of(document) is packed
    reading.turn(after_s=WATCHED_S)
    assert not reading.feed.is_watched
    assert [one for one in gc.get_referrers(snapshot) if not inspect.isframe(one)] == []
    assert site.packed.of(document) is not packed


def test_what_came_before_the_visitor(reading: Reading) -> None:
    """Operations that ended before the first visit are read from the ring, and none is counted twice."""
    for sequence in range(1, 6):
        reading.tapes[0].run(at=sequence * SECOND, lasts=1000, sequence=sequence)
    reading.turn()
    reading.feed.visit()
    reading.turn()
    assert reading.bars() == {0: 5, 1: 0}
    reading.tapes[0].run(at=7 * SECOND, lasts=1000, sequence=6)
    reading.tapes[1].run(at=7 * SECOND, lasts=1000, sequence=1)
    reading.turn()
    assert reading.bars() == {0: 6, 1: 1}
    snapshot = reading.feed.visit()
    assert snapshot is not None
    assert [bar.name for bar in snapshot.bars[reading.tapes[0].reader.identity.nonce]] == ["all_reduce"] * 6


def test_past_is_read_in_portions(memory: Path) -> None:
    """However many ranks there are, one turn reads the past of a few of them only; a few turns later all are there."""
    reading = Reading(memory, 8, catch_up_s=0.0)
    for tape in reading.tapes:
        tape.run(sequence=1)
    reading.turn()
    reading.feed.visit()
    for turn in range(1, 9):
        reading.turn()
        snapshot = reading.feed.visit()
        assert snapshot is not None and len(snapshot.bars) == turn
    assert reading.bars() == dict.fromkeys(range(8), 1)


def test_snapshots_are_bounded_in_time(reading: Reading) -> None:
    """However often the reader takes its turn, it publishes at most about twice a second."""
    reading.feed.visit()
    published = []
    for _ in range(100):
        reading.turn(after_s=0.1)
        published.append(reading.feed.visit())
    assert len(set(map(id, published))) == 20


def test_visitors_share_a_document(reading: Reading) -> None:
    """A document is made once for all visitors who want the same of one snapshot."""
    page = LivePage(reading.feed)
    assert b'"at":0.0' in page.document({}, None)
    reading.turn()
    first = page.document({}, None)
    assert page.document({}, None) is first
    assert page.document({"ranks": "1"}, None) is not first
    assert page.document({}, 4711) is not first
    reading.turn()
    assert page.document({}, None) is not first
