"""Ranks with several threads that communicate: the thread that should enter, and the reason why it does not."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.verdict.verdict import Doubt
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.tape.names.reader import MAIN_THREAD
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import located_verdict, named, verdicts

DEFAULT, SAVERS = group_of(0, 1, description="default_pg"), group_of(0, 1, nth=1, description="savers")
MAIN, SAVER = 100, 200
SAVE = "save (train.py)"
THREADING = "/usr/lib/python3.11/threading.py"
JOIN = CallSiteName("join", THREADING, 1)
START = CallSiteName("_bootstrap", THREADING, 2)


def line(function: str, number: int = 7) -> CallSiteName:
    """Build a line of the program."""
    return CallSiteName(function, "/home/user/train.py", number)


def main_stack(*frames: CallSiteName) -> ThreadStack:
    """Build the stack of a main thread."""
    return ThreadStack(MAIN, MAIN_THREAD, (*frames, line("<module>", 99)), is_locked=False)


def saver_stack(*frames: CallSiteName, thread: int = SAVER) -> ThreadStack:
    """Build the stack of a thread that runs `save`; each has a new id."""
    return ThreadStack(thread, f"Thread-{thread}", (*frames, line("save", 20), START), is_locked=False)


def saver_world() -> FakeWorld:
    """Let rank 0's saver wait for rank 1's saver, and rank 1's main thread for rank 0's. Each saver is a new thread."""
    world = FakeWorld(2)
    for rank in world.ranks:
        number = rank.enter(DEFAULT, 0.1, thread=MAIN, caller=MAIN_THREAD)
        rank.end(number, 0.2)
        number = rank.enter(SAVERS, 0.3, thread=SAVER - 1, caller=SAVE)
        rank.end(number, 0.4)
    world.ranks[0].enter(SAVERS, 1.0, thread=SAVER, caller=SAVE)
    world.ranks[1].enter(DEFAULT, 2.0, thread=MAIN, caller=MAIN_THREAD)
    return world


def test_saver_that_hangs() -> None:
    """Rank 0's main thread joins its saver, and rank 1's saver writes: rank 1 is absent, at the line that writes."""
    world = saver_world()
    world.ranks[0].write_stacks(19.0, main_stack(JOIN, line("main")), saver_stack(line("save")))
    world.ranks[1].write_stacks(19.0, main_stack(line("main")), saver_stack(line("write_shard", 5)))
    verdict = located_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))
    assert describe_verdict(verdict, 24).startswith(
        "rank 1 has not entered all_reduce (sequence 2, savers) for 24.0 s; "
        "it is in write_shard at train.py:5; 1 of 2 ranks waits in save at train.py:7"
    )


def test_saver_that_hangs_in_its_first_save() -> None:
    """In a first save, the missing thread is identified by the function of the waiting thread on the other rank."""
    world = FakeWorld(2)
    world.ranks[0].enter(SAVERS, 1.0, thread=SAVER, caller=SAVE)
    world.ranks[1].enter(DEFAULT, 2.0, thread=MAIN, caller=MAIN_THREAD)
    world.ranks[0].write_stacks(19.0, main_stack(JOIN, line("main")), saver_stack(line("save")))
    world.ranks[1].write_stacks(19.0, main_stack(line("main")), saver_stack(line("write_shard", 5), thread=999))
    found = verdicts(world.snapshot(25.0))
    assert {(one.kind, one.ranks) for one in found.values() if one is not None} == {(VerdictKind.ABSENT, (1,))}


def test_saver_that_is_yet_to_be_started() -> None:
    """Rank 1's saver has not started, and its main thread, which should start it, waits for rank 0: a circle."""
    world = saver_world()
    world.ranks[0].write_stacks(19.0, main_stack(JOIN, line("main")), saver_stack(line("save")))
    world.ranks[1].write_stacks(19.0, main_stack(line("main")))
    assert named(world.snapshot(25.0)) == (VerdictKind.CIRCULAR, (0, 1))


def test_main_thread_that_is_busy() -> None:
    """Rank 0's saver waits in its own group, but its main thread loads a batch: rank 0 is absent."""
    world = saver_world()
    world.ranks[0].write_stacks(19.0, main_stack(line("load_batch", 57)), saver_stack(line("save")))
    world.ranks[1].write_stacks(19.0, main_stack(line("main")), saver_stack(line("save")))
    [of_default] = [
        one
        for operation_id, one in verdicts(world.snapshot(25.0)).items()
        if operation_id.channel.group == DEFAULT.key and one is not None
    ]
    assert (of_default.kind, of_default.ranks) == (VerdictKind.ABSENT, (0,))


def test_without_stacks() -> None:
    """Without stacks, the wait of another thread names no rank."""
    verdict = located_verdict(saver_world().snapshot(25.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.THREADS)


def test_loader_that_waits_for_its_own_threads() -> None:
    """A DataLoader waits for its own thread, which makes no calls, so the saver's wait does not explain the absence."""
    world = saver_world()
    loader = CallSiteName("_next_data", "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", 3)
    waiting = CallSiteName("wait", THREADING, 1)
    world.ranks[0].write_stacks(19.0, main_stack(waiting, loader, line("main")), saver_stack(line("save")))
    [of_default] = [
        one
        for operation_id, one in verdicts(world.snapshot(25.0)).items()
        if operation_id.channel.group == DEFAULT.key and one is not None
    ]
    assert (of_default.kind, of_default.ranks) == (VerdictKind.ABSENT, (0,))


@pytest.mark.parametrize("is_locked", [True, None])
def test_lock_at_a_line_of_the_program(is_locked: bool | None) -> None:
    """Rank 0's main thread may wait for a lock of its saver: the verdict follows the saver, not that line."""
    world = saver_world()
    waiting = dataclasses.replace(main_stack(line("publish", 33)), is_locked=is_locked)
    world.ranks[0].write_stacks(19.0, waiting, saver_stack(line("save")))
    world.ranks[1].write_stacks(19.0, main_stack(line("main")), saver_stack(line("write_shard", 5)))
    assert named(world.snapshot(25.0)) == (VerdictKind.ABSENT, (1,))


def test_locks_on_both_ranks() -> None:
    """If no thread is known to be busy, no rank is named."""
    world = saver_world()
    for rank, waits in zip(world.ranks, ("publish", "main"), strict=True):
        locked = dataclasses.replace(saver_stack(line("write_shard", 5)), is_locked=True)
        rank.write_stacks(19.0, dataclasses.replace(main_stack(line(waits)), is_locked=True), locked)
    verdict = located_verdict(world.snapshot(25.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.THREADS)
