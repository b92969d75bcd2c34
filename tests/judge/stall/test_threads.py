"""Stalls that only stacks explain: threads that wait for each other, or wait in C++ code."""

from __future__ import annotations

from otel_torchdist.judge.stall.events import Occasion, StacksWanted
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.tape.names.reader import MAIN_THREAD
from tests.support.worlds.detectors import LOAD_BATCH, THRESHOLD_S, Watching
from tests.support.worlds.fake_world import FakeWorld, group_of

DEFAULT, SAVERS = group_of(0, 1, description="default_pg"), group_of(0, 1, nth=1, description="savers")
MAIN, SAVER = 100, 200
JOIN = CallSiteName("join", "/usr/lib/python3.11/threading.py", 1)
PROGRAM = CallSiteName("main", "/home/user/train.py", 40)
WRITE = CallSiteName("write_shard", "/home/user/train.py", 5)
SAVE = CallSiteName("save", "/home/user/train.py", 20)


def saver_world() -> FakeWorld:
    """Rank 0's saver thread waits for rank 1's saver, and rank 1's main thread waits for rank 0's main thread."""
    world = FakeWorld(2)
    world.meet(DEFAULT, 0.1)
    world.ranks[0].enter(SAVERS, 1.0, thread=SAVER, caller="save (train.py)")
    world.ranks[1].enter(DEFAULT, 2.0, thread=MAIN, caller=MAIN_THREAD)
    return world


STACKS = {
    0: (ThreadStack(MAIN, MAIN_THREAD, (JOIN, PROGRAM), False), ThreadStack(SAVER, "saver", (SAVE,), False)),
    1: (ThreadStack(MAIN, MAIN_THREAD, (PROGRAM,), False), ThreadStack(SAVER + 1, "saver", (WRITE, SAVE), False)),
}


def test_first_verdict_rests_on_stacks() -> None:
    """The stacks requested at the threshold decide the first verdict. They are requested once."""
    watching = Watching(saver_world(), stacks=STACKS).until(1.0 + THRESHOLD_S + 3)
    [(at_s, given), *_] = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.ABSENT, (1,))
    assert given.verdict.places[1].frame == WRITE
    assert at_s <= 1.0 + THRESHOLD_S + 2
    wishes = [when_s for when_s, event in watching.events if isinstance(event, StacksWanted)]
    assert len([when_s for when_s in wishes if 1.0 + THRESHOLD_S <= when_s <= at_s]) == 1


def test_verdict_stands_while_stacks_are_asked_for_again() -> None:
    """At twice the threshold, stacks are requested again. Until they arrive, the earlier ones count."""
    watching = Watching(saver_world(), stacks=STACKS).until(1.0 + 4 * THRESHOLD_S + 3)
    assert len(watching.verdicts) > 1
    assert {given.occasion for _, given in watching.verdicts[1:]} == {Occasion.GROWN}
    assert {(given.verdict.kind, given.verdict.ranks) for _, given in watching.verdicts} == {(VerdictKind.ABSENT, (1,))}


def test_ranks_that_never_answer() -> None:
    """Without stacks, no rank is named, and the verdict is given in the usual time."""
    watching = Watching(saver_world(), answers_after_s=None).until(1.0 + THRESHOLD_S + 3)
    [(at_s, given)] = watching.verdicts
    assert (given.verdict.kind, given.verdict.ranks) == (VerdictKind.UNKNOWN, (0, 1))
    assert at_s <= 1.0 + THRESHOLD_S + 2


def test_prefetch_in_flight() -> None:
    """A rank that loads a batch with an operation in flight is absent in every verdict."""
    world = FakeWorld(2)
    world.meet(DEFAULT, 0.1)
    world.ranks[0].enter(DEFAULT, 1.0)
    world.ranks[1].enter(SAVERS, 2.0, "all_gather_into_tensor", blocking=False, flags=Flag.ASYNC)
    watching = Watching(world).until(1.0 + 2 * THRESHOLD_S + 3)
    assert {(given.verdict.kind, given.verdict.ranks) for _, given in watching.verdicts} == {(VerdictKind.ABSENT, (1,))}
    assert watching.verdicts[0][1].verdict.places[1].frame == LOAD_BATCH
