"""Ranks of other nodes as the agent that judges sees them: up to date, on any node and any clock."""

from __future__ import annotations

import dataclasses
import time

import pytest

from otel_torchdist.agent.exchange.codec import answer_of, views_of
from otel_torchdist.agent.exchange.run_exchange import RunExchange
from otel_torchdist.agent.exchange.wire import decode_answer, encode
from otel_torchdist.judge.stall.events import Role
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.agent.exchange.peer_agents import Agents, exchange_of, world_of
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, group_of

MINUTE = 60 * SECOND
EVERYBODY = group_of(0, 1, 2, 3)


def test_each_snapshot_is_the_newest(two: Agents) -> None:
    """The state of a rank of another node is seen soon after, again and again, while a stall is suspected."""
    two.begin()
    two.set_suspicion(True)
    two.wait_until_judges(True, False)
    for sequence in (1, 2):
        number = two.world.ranks[3].enter(EVERYBODY, 9.0)
        until(lambda: two.meet() and len(world_of(two, 0).ranks[3].open) == 1)
        two.world.ranks[3].end(number, 9.5)
        until(lambda: two.meet() and world_of(two, 0).ranks[3].open == ())
        channel = Channel(RecordKind.OPERATION, EVERYBODY.key)
        assert world_of(two, 0).ranks[3].progress[channel].completed == sequence


def test_rank_that_has_moved(two: Agents) -> None:
    """If two agents have a tape of the same rank, the live one is used."""
    two.world.ranks[1].die(9.0)
    two.begin()
    two.set_suspicion(True)
    two.nodes[1].ranks = (1, 2, 3)
    two.wait_until_judges(True, False)
    two.world.ranks[1].alive = True
    until(lambda: exchange_of(two, 1).meet(two.nodes[1].local(), True) and world_of(two, 0).ranks[1].alive)


def test_what_an_earlier_attempt_has_left(two: Agents) -> None:
    """While ranks may have an earlier attempt's id, a remote rank that died before they began is not one of theirs."""
    for rank in two.world.ranks[:2]:
        rank.created_s, rank.run_is_sure = 5.0, False
    for rank, died_s in zip(two.world.ranks[2:], (3.0, 9.0), strict=True):
        rank.die(died_s)
        rank.heartbeat_age_s, rank.seen_alive_s = 7.0, died_s  # the last heartbeat of both was at 3 s
    two.begin()
    two.set_suspicion(True)
    until(lambda: two.judges()[0] is True and 3 in world_of(two, 0).ranks)
    assert sorted(world_of(two, 0).ranks) == [0, 1, 3]
    for rank in two.world.ranks[:2]:
        rank.run_is_sure = True
    until(lambda: two.judges()[0] is True and 2 in world_of(two, 0).ranks)


class _Elsewhere(RunExchange):
    """An agent whose monotonic clock shows another time, like that of another machine."""

    skew_ns = 0

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Role:
        """Meet with a snapshot on that clock."""
        views = views_of(answer_of(world, 0, False, 0), RUN, self.skew_ns, 0)
        ranks = {view.rank: dataclasses.replace(view, is_remote=False) for view in views}
        return super().meet(WorldSnapshot(RUN, world.taken_ns + self.skew_ns, ranks), suspects_stall)

    def respond(self, path: str, body: bytes) -> bytes | None:
        """Answer with that clock's time."""
        answer = super().respond(path, body)
        if answer is None:
            return None
        said = decode_answer(answer)
        return encode(dataclasses.replace(said, now_ns=said.now_ns + self.skew_ns))


@pytest.mark.parametrize("skew_ns", [10 * MINUTE, -10 * MINUTE, 0])
def test_clocks_that_differ(two: Agents, skew_ns: int) -> None:
    """A wait on a node whose clock is minutes off has its real age, up to some milliseconds."""
    kind = type("Elsewhere", (_Elsewhere,), {"skew_ns": skew_ns})
    since_s = (time.monotonic_ns() - START_NS) / 1e9 - 30
    two.world.ranks[2].enter(EVERYBODY, since_s)
    two.begin(0)
    two.nodes[1].begin(two.others_of(1), kind)
    two.set_suspicion(True)
    two.wait_until_judges(True, False)

    def is_near() -> bool:
        """The first answer on a busy machine may have taken long, which the times are off by."""
        two.meet()
        (there,), (here,) = world_of(two, 0).ranks[2].open, two.nodes[1].local().ranks[2].open
        assert there.waiting_since_ns is not None and here.waiting_since_ns is not None
        waited, entered = (
            there.waiting_since_ns - here.waiting_since_ns,
            there.record.entered_ns - here.record.entered_ns,
        )
        return max(abs(waited), abs(entered)) < 50_000_000

    until(is_near)
