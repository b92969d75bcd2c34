"""Findings on remote procedure calls that cannot proceed, and calls that can."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from otel_torchdist.agent.exchange.codec import answer_of, views_of
from otel_torchdist.agent.exchange.wire import decode_answer, encode
from otel_torchdist.judge.stall.findings.remote_calls import TroubleFinder, troubled_calls
from otel_torchdist.model.remote_calls import CallView, WorkerView
from otel_torchdist.model.reports.finding import FindingKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, THRESHOLD_NS, FakeWorld

BEGUN_NS = START_NS + SECOND


def made(peer: int, thread: int, holds_thread: bool = True) -> CallView:
    """Build a call made by a thread."""
    return CallView(False, "nested", f"worker{peer}", BEGUN_NS, thread, holds_thread)


def served(peer: int, thread: int, holds_thread: bool = True) -> CallView:
    """Build a call served by a thread."""
    return CallView(True, "nested", f"worker{peer}", BEGUN_NS, thread, holds_thread)


def world_of(
    calls: Mapping[int, tuple[CallView, ...]], now_s: float, threads: int = 2, stopped: int = -1
) -> WorldSnapshot:
    """Build workers with these open calls."""
    world = FakeWorld(len(calls))
    if stopped >= 0:
        world.ranks[stopped].stopped, world.ranks[stopped].stopped_since_s = "T", 0.0
    taken = world.snapshot(now_s)
    views = {
        rank: dataclasses.replace(view, worker=WorkerView(f"worker{rank}", threads, calls[rank]))
        for rank, view in taken.ranks.items()
    }
    return dataclasses.replace(taken, ranks=views)


FULL = {
    0: (made(1, 11), made(1, 12), served(1, 11), served(1, 12)),
    1: (made(0, 21), made(0, 22), served(0, 21), served(0, 22)),
}


def test_full_pools() -> None:
    """Workers whose threads all wait for each other are reported after the threshold, once."""
    finder = TroubleFinder(THRESHOLD_NS)
    found = {now_s: finder.find(world_of(FULL, now_s)) for now_s in range(20, 40)}
    assert [now_s for now_s, one in found.items() if one] == [30]
    [starved] = found[30]
    assert (starved.kind, starved.ranks, starved.function) == (FindingKind.STARVED, (0, 1), "nested")
    finder.find(world_of({0: (), 1: ()}, 41))
    assert finder.gone == [starved]


def test_time_in_which_nobody_looked() -> None:
    """A momentary state is not reported after a long pause between two passes: the job may have been suspended."""
    finder = TroubleFinder(THRESHOLD_NS)
    assert finder.find(world_of(FULL, 20)) == []
    assert finder.find(world_of(FULL, 500)) == []
    other = {
        rank: tuple(dataclasses.replace(call, since_ns=call.since_ns + 5) for call in of) for rank, of in FULL.items()
    }
    for now_s in range(501, 509):
        assert finder.find(world_of(other, now_s)) == []


@pytest.mark.parametrize(
    "calls",
    [
        {**FULL, 1: FULL[1][1:]},  # a thread of worker 1 computes
        {**FULL, 1: (FULL[1][0], FULL[1][2])},  # one is free
        {**FULL, 1: (made(0, 21), made(0, 22, holds_thread=False), *FULL[1][2:])},  # one has called and goes on
        {
            **FULL,
            1: (*FULL[1][:3], served(0, 22, holds_thread=False)),
        },  # one runs a function that has returned a future
        {**FULL, 1: (made(2, 21), *FULL[1][1:]), 2: ()},  # one waits for a worker that has free threads
        {0: (made(1, 1),), 1: (served(0, 21),)},  # a trainer trains
    ],
)
def test_what_can_go_on(calls: Mapping[int, tuple[CallView, ...]]) -> None:
    """Nothing is reported while one thread is free, computes, or waits for a worker that is not stuck."""
    assert troubled_calls(world_of(calls, 10_000)) == []


def test_number_of_threads_not_known() -> None:
    """The number of threads is unknown for a worker that joined before recording began."""
    assert troubled_calls(world_of(FULL, 10_000, threads=0)) == []


def test_stopped() -> None:
    """A stopped worker is named if a running worker has called it. Its own calls do not matter."""
    calls = {0: (made(1, 1),), 1: (served(0, 21), made(2, 22)), 2: (served(1, 31),)}
    [frozen] = troubled_calls(world_of(calls, 21, stopped=1))
    assert (frozen.kind, frozen.ranks) == (FindingKind.FROZEN, (1,))
    assert frozen.text == (
        "worker1 (rank 1) does not run, because it is stopped by a signal: rank 0 has called it, nested for 20.0 s"
    )
    assert troubled_calls(world_of(calls, 21, stopped=0)) == []


def test_other_nodes() -> None:
    """Agents exchange the calls of their workers, converted to the receiver's clock."""
    world = world_of(FULL, 20)
    answer = decode_answer(encode(answer_of(world, 0, False, world.taken_ns)))
    views = views_of(answer, RUN, 7 * SECOND, 0)
    for view, before in zip(views, world.in_order, strict=True):
        assert before.worker is not None
        assert view.worker == before.worker.moved(7 * SECOND)
