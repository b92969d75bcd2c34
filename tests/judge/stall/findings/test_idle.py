"""Jobs that are idle outside of operations, and healthy jobs that make no calls for a long time."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.agent.exchange.codec import answer_of, views_of
from otel_torchdist.agent.exchange.wire import decode_answer, encode
from otel_torchdist.judge.stall.findings.idle import IdleFinder
from otel_torchdist.judge.verdict.idle import Idle
from otel_torchdist.judge.verdict.wording.places import describe_idle
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.occupations import CallPace
from otel_torchdist.model.rank_state.stacks import Stacks, ThreadStack
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from tests.support.worlds.fake_world import RUN, SECOND, START_NS, FakeWorld, group_of

MIN_NS = 60 * SECOND
PACKAGES = "/venv/lib/python3.11/site-packages"
STANDARD = "/usr/lib/python3.11"
BUILD = CallSiteName("build_kernels", "/home/user/train.py", 28)
LOAD = CallSiteName("load", "/home/user/data.py", 7)
LOCKED = (CallSiteName("FileBaton.wait", f"{PACKAGES}/torch/utils/file_baton.py", 49), BUILD)
PAIR = group_of(0, 1, description="default_pg")


def a_world() -> FakeWorld:
    """Build two ranks that have completed one operation at second 1."""
    world = FakeWorld(2)
    world.meet(PAIR, 1.0)
    return world


def seen(
    world: FakeWorld,
    now_s: float,
    frames: tuple[CallSiteName, ...] = LOCKED,
    of_1: tuple[CallSiteName, ...] | None = None,
    busy: float | None = 0.01,
    gap_s: float = 0.0,
    called_s: float = 1.0,
    stacks_s: float | None = None,
) -> WorldSnapshot:
    """Take a snapshot of ranks with these main threads. Their stacks are new unless an age is given."""
    taken = world.snapshot(now_s)
    asked_ns = START_NS + round((now_s if stacks_s is None else stacks_s) * SECOND)
    pace = CallPace(START_NS + round(called_s * SECOND), round(gap_s * SECOND), busy)
    views: dict[int, RankView] = {}
    for rank, view in taken.ranks.items():
        own = of_1 if rank == 1 and of_1 is not None else frames
        threads = (ThreadStack(100 + rank, "MainThread", own),)
        views[rank] = dataclasses.replace(view, stacks=Stacks(asked_ns, threads), pace=pace, groups={PAIR.key: PAIR})
    return dataclasses.replace(taken, ranks=views)


def found_at(finder: IdleFinder, world: FakeWorld, until_s: int = 120, **changes: object) -> list[int]:
    """Return the seconds at which a finding is reported, with one pass per second."""
    return [now_s for now_s in range(2, until_s) if finder.find(seen(world, now_s, **changes)) is not None]  # type: ignore[arg-type]


def test_all_ranks_stand_in_one_line() -> None:
    """All ranks have waited at one line for the minimum time: reported once, with the function in which they wait."""
    finder, world = IdleFinder(MIN_NS), a_world()
    [now_s] = found_at(finder, world)
    assert now_s == 62
    finder = IdleFinder(MIN_NS)
    found = [finder.find(seen(world, now_s)) for now_s in range(2, 63)][-1]
    assert found is not None
    assert found.ranks == (0, 1)
    assert describe_idle(found, 61.0) == (
        "ranks 0-1 are in build_kernels at train.py:28, in FileBaton.wait: no rank is in an operation, and none has "
        "been for 61.0 s"
    )
    assert describe_idle(found, 61.0, is_over=True).startswith("ranks 0-1 were in build_kernels at train.py:28, ")


def test_it_ends_with_the_next_call() -> None:
    """The finding ends with the next call, and a later idle period is a new finding."""
    finder, world = IdleFinder(MIN_NS), a_world()
    assert found_at(finder, world, 63) == [62]
    assert finder.find(seen(world, 64, called_s=63.5)) is None
    assert isinstance(finder.gone, Idle)
    assert finder.find(seen(world, 65, called_s=63.5)) is None
    assert finder.gone is None


def test_ranks_in_different_lines_are_grouped() -> None:
    """Each line is stated with its ranks."""
    finder, world = IdleFinder(MIN_NS), a_world()
    found = [finder.find(seen(world, now_s, of_1=(LOAD,))) for now_s in range(2, 63)][-1]
    assert found is not None
    assert describe_idle(found, 61.0).startswith(
        "rank 0 is in build_kernels at train.py:28, in FileBaton.wait, rank 1 is in load at data.py:7: no rank"
    )


def test_long_gaps_are_usual_in_some_jobs() -> None:
    """A job with an earlier gap of 30 s between two calls is reported only after 300 s."""
    assert found_at(IdleFinder(MIN_NS), a_world(), 280, gap_s=30.0) == []
    assert found_at(IdleFinder(MIN_NS), a_world(), 320, gap_s=30.0) == [302]


@pytest.mark.parametrize(
    "frames",
    [
        (CallSiteName("codegen", f"{PACKAGES}/torch/_inductor/graph.py", 9), BUILD),
        (CallSiteName("raw_input", f"{STANDARD}/code.py", 277),),
        (CallSiteName("Pdb.cmdloop", f"{STANDARD}/cmd.py", 126), CallSiteName("Pdb.x", f"{STANDARD}/pdb.py", 1), BUILD),
        (
            CallSiteName("EpollSelector.select", f"{STANDARD}/selectors.py", 468),
            CallSiteName("BaseEventLoop._run_once", f"{STANDARD}/asyncio/base_events.py", 1898),
            CallSiteName("start", f"{PACKAGES}/ipykernel/kernelapp.py", 739),
        ),
        (CallSiteName("Queue.get", f"{STANDARD}/queue.py", 171), BUILD),
        (CallSiteName("poll", f"{PACKAGES}/zmq/sugar/poll.py", 106), BUILD),
        (),
    ],
    ids=["compiles", "prompt", "debugger", "notebook", "queue of requests", "server", "nothing runs"],
)
def test_ranks_that_compile_or_wait_to_be_asked(frames: tuple[CallSiteName, ...]) -> None:
    """Compilation, an interpreter's prompt, a notebook without a running cell, and servers are not idle."""
    assert found_at(IdleFinder(MIN_NS), a_world(), frames=frames) == []
    assert found_at(IdleFinder(MIN_NS), a_world(), of_1=frames) == []


def test_cell_of_a_notebook_that_hangs() -> None:
    """A rank that hangs in a cell, below the notebook's loop, is idle at the line of the cell."""
    kernel = CallSiteName("BaseEventLoop._run_once", f"{STANDARD}/asyncio/base_events.py", 1898)
    assert found_at(IdleFinder(MIN_NS), a_world(), frames=(*LOCKED, kernel)) == [62]


def test_data_loader_without_data() -> None:
    """Ranks that wait for their DataLoaders are idle, although a DataLoader waits in a queue like a server."""
    frames = (
        CallSiteName("Queue.get", f"{STANDARD}/multiprocessing/queues.py", 113),
        CallSiteName("_try_get_data", f"{PACKAGES}/torch/utils/data/dataloader.py", 1251),
        BUILD,
    )
    assert found_at(IdleFinder(MIN_NS), a_world(), frames=frames) == [62]


def test_ranks_that_work() -> None:
    """Evaluation or data preparation without calls uses CPU time, in the rank or in its child processes."""
    assert found_at(IdleFinder(MIN_NS), a_world(), busy=0.9) == []
    finder, world = IdleFinder(MIN_NS), a_world()
    worked = [finder.find(seen(world, now_s, busy=0.9 if now_s % 20 == 0 else 0.0)) for now_s in range(2, 120)]
    assert worked == [None] * len(worked)


def test_ranks_that_move_on() -> None:
    """Ranks whose line changes from time to time are not idle."""
    finder, world = IdleFinder(MIN_NS), a_world()
    lines = [CallSiteName("evaluate", "/home/user/train.py", 30 + now_s // 40) for now_s in range(200)]
    assert [finder.find(seen(world, now_s, frames=(lines[now_s],))) for now_s in range(2, 200)] == [None] * 198


def test_stacks_that_are_awaited_or_old() -> None:
    """While a new stack is pending, the previous line counts. A stack from before the last call does not count."""
    finder, world = IdleFinder(MIN_NS), a_world()
    found: list[int] = []
    for now_s in range(2, 80):
        snapshot = seen(world, now_s)
        if now_s % 5 == 0:
            awaited = {
                rank: dataclasses.replace(view, stacks=Stacks(snapshot.taken_ns, None))
                for rank, view in snapshot.ranks.items()
            }
            snapshot = dataclasses.replace(snapshot, ranks=awaited)
        found += [now_s] if finder.find(snapshot) is not None else []
    assert found == [62]
    assert found_at(IdleFinder(MIN_NS), a_world(), stacks_s=0.5) == []


def test_a_run_of_which_not_all_is_seen_or_well() -> None:
    """A run is not idle if an operation is open, or a rank is stopped, over, unseen or in `expect_wait`."""
    waiting = a_world()
    waiting.ranks[1].enter(PAIR, 1.5)
    frozen = a_world()
    frozen.ranks[1].stopped = "T"
    over = a_world()
    over.ranks[1].die(5.0)
    patient = a_world()
    patient.ranks[1].expects_until_s = 500.0
    for world in (waiting, frozen, over, patient):
        assert found_at(IdleFinder(MIN_NS), world) == []
    finder, world = IdleFinder(MIN_NS), a_world()
    for now_s in range(2, 100):
        snapshot = seen(world, now_s)
        assert finder.find(dataclasses.replace(snapshot, ranks={0: snapshot.ranks[0]})) is None


def test_time_in_which_nothing_is_seen_does_not_count() -> None:
    """A suspended job is not idle when it resumes: long pauses between passes hardly count."""
    finder, world = IdleFinder(MIN_NS), a_world()
    assert finder.find(seen(world, 2)) is None
    assert finder.find(seen(world, 500)) is None
    assert finder.find(seen(world, 501)) is None


def test_switched_off() -> None:
    """With 0, nothing is reported."""
    assert found_at(IdleFinder(0), a_world(), 300) == []


def test_ranks_of_other_nodes() -> None:
    """Agents exchange the pace of calls and the CPU use of their ranks, converted to the receiver's clock."""
    sent = seen(a_world(), 20.0, gap_s=3.0)
    answer = decode_answer(encode(answer_of(sent, 1, False, sent.taken_ns)))
    received = views_of(answer, RUN, 7 * SECOND, 0)
    assert [view.pace for view in received] == [view.pace.moved(7 * SECOND) for view in sent.in_order]
    assert received[0].pace.called_ns == START_NS + 8 * SECOND


def test_line_that_waits_in_a_package() -> None:
    """A lock in an installed package: the line of the program is stated, with the package's function that it called."""
    package = CallSiteName("FileLock.acquire", f"{PACKAGES}/filelock/_api.py", 300)
    finder, world = IdleFinder(MIN_NS), a_world()
    found = [finder.find(seen(world, now_s, (package, BUILD))) for now_s in range(2, 63)][-1]
    assert found is not None
    assert describe_idle(found, 61.0).startswith("ranks 0-1 are in build_kernels at train.py:28, in FileLock.acquire: ")
