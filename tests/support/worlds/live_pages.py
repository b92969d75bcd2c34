"""Live pages without jobs: snapshots of simulated worlds, and a server for them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Gauge

from otel_torchdist.config import Config, PageAccess
from otel_torchdist.judge.stall.events import RunSeen
from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.show.live.live_snapshot import AgentFacts, Bar, LiveRun, LiveSnapshot, Sample
from otel_torchdist.show.live.site import live_feed, live_site
from otel_torchdist.show.serving.metrics_page import MetricsServer
from otel_torchdist.show.serving.site import Site
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, THRESHOLD_NS, FakeRank, group_of

FACTS = AgentFacts("an instance", "node-1", os.geteuid(), THRESHOLD_NS / SECOND)
RANKS_OF_A_NODE = 8


def stalled_world(size: int, missing: tuple[int, ...], age_s: float, group_name: str = "default_pg") -> WorldSnapshot:
    """Ranks that have met 20 times in a group of all, and now wait for some of them.

    Args:
        size: How many ranks.
        missing: Those that have not come.
        age_s: For how long the others have waited.
        group_name: Name of the group.
    """
    group = group_of(*range(size), description=group_name)
    late, waiting = _view_of(group, 20 + age_s, is_late=True), _view_of(group, 20 + age_s, is_late=False)
    views = {rank: _placed(late if rank in missing else waiting, rank) for rank in range(size)}
    return WorldSnapshot(RUN, START_NS + round((20 + age_s) * SECOND), views)


def _view_of(group: GroupView, now_s: float, is_late: bool) -> RankView:
    """A rank that is late or waits: all others do the same, and it takes long to write each one's tape."""
    rank = FakeRank(0)
    for nth in range(20):
        rank.end(rank.enter(group, nth), nth + 0.001)
    if not is_late:
        rank.enter(group, 20)
    return rank.view(now_s)


def _placed(view: RankView, rank: int) -> RankView:
    host = f"node-{1 + rank // RANKS_OF_A_NODE}"
    return dataclasses.replace(view, rank=rank, nonce=view.nonce + rank, host=host, step=20)


def with_stack(world: WorldSnapshot, rank: int, *frames: CallSiteName) -> WorldSnapshot:
    """The same world, where a rank has written its stack."""
    view = world.ranks[rank]
    stacks = Stacks(world.taken_ns, (ThreadStack(100, "MainThread", frames),))
    return dataclasses.replace(world, ranks={**world.ranks, rank: dataclasses.replace(view, stacks=stacks)})


def seen_in(world: WorldSnapshot, *after: WorldSnapshot) -> RunSeen:
    """What a detector sees of it, once it has waited for stacks, and of other worlds after it."""
    detector = Detector(StallRules(THRESHOLD_NS), START_NS)
    detector.process([world])
    for _ in range(12):
        world = dataclasses.replace(world, taken_ns=world.taken_ns + SECOND // 4)
        detector.process([world])
    for later in after:
        detector.process([dataclasses.replace(later, taken_ns=world.taken_ns + SECOND)])
    return detector.seen[0]


def snapshot_of(*seen: RunSeen, owners: tuple[int, ...] = ()) -> LiveSnapshot:
    """A snapshot of some runs, with the last minute of each rank."""
    users = owners or (os.geteuid(),) * len(seen)
    runs = tuple(
        LiveRun(f"key{nth}", users[nth], f"job-{nth}", len(one.world.ranks), one) for nth, one in enumerate(seen)
    )
    now_ns = max((one.world.taken_ns for one in seen), default=START_NS)
    views = [view for one in seen for view in one.world.ranks.values()]
    return LiveSnapshot(
        taken_ns=now_ns,
        wall_ns=1_700_000_000 * SECOND + now_ns,
        runs=runs,
        bars={view.nonce: _bars(view) for view in views},
        samples={view.nonce: _samples(view, now_ns) for view in views},
        spans_dropped=0,
        records_lost={},
    )


def _bars(view: RankView) -> tuple[Bar, ...]:
    """20 meetings of 0.4 s, one a second."""
    group = next(iter(view.groups), "")
    begins = (START_NS + nth * SECOND for nth in range(20))
    return tuple(Bar("all_reduce", group, begin, begin + 2 * SECOND // 5) for begin in begins)


def _samples(view: RankView, now_ns: int) -> tuple[Sample, ...]:
    """Counters of the last 20 seconds of a rank that communicates for a quarter of its time."""
    return tuple(
        Sample(now_ns - ago * SECOND // 2, view.step, (100 - ago) * SECOND // 8, 0, (100 - ago) * 1000)
        for ago in range(40, -1, -1)
    )


@contextlib.contextmanager
def served(
    snapshot: LiveSnapshot | None,
    access: PageAccess = PageAccess.LOOPBACK,
    host: str = "127.0.0.1",
    trace_url: str = "",
    port: int = 0,
) -> Iterator[Served]:
    """Serve a snapshot beside `/metrics`."""
    config = Config(page=access, trace_url=trace_url)
    feed = live_feed(config)
    if feed is not None:
        feed.facts = dataclasses.replace(feed.facts, threshold_s=FACTS.threshold_s, host=FACTS.host)
        feed.visit = lambda: shown.snapshot
    registry = CollectorRegistry()
    Gauge("answer", "Of everything.", registry=registry).set(42)
    site = live_site(config, feed)
    server = MetricsServer(host, port, registry, site=site)
    assert server.start()
    assert server.port is not None
    shown = Served(server.port, snapshot, server, registry, site)
    try:
        yield shown
    finally:
        server.stop()


@dataclasses.dataclass
class Served:
    """A page that is served.

    Attributes:
        port: Its port.
        snapshot: What it shows; may be replaced.
        server: The server.
        registry: What `/metrics` shows.
        site: The page; None if there is none.
    """

    port: int
    snapshot: LiveSnapshot | None
    server: MetricsServer
    registry: CollectorRegistry
    site: Site | None

    @property
    def address(self) -> str:
        """Where it is."""
        return f"http://localhost:{self.port}/"
