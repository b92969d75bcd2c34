"""Waits without a record: in a backward pass, in an optimizer step, for a future."""

from __future__ import annotations

import pytest

from otel_torchdist.judge.verdict.verdict import Doubt
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.kinds import Flag, Phase, RecordKind
from otel_torchdist.model.names import CallSiteName
from otel_torchdist.model.rank_state.occupations import OccupationKind
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import located_verdict, named

MAIN = 100
DDP, SEED = group_of(0, 1, 2, description="default_pg"), group_of(0, 1, 2, nth=1, description="seed")
ENGINE = CallSiteName("_engine_run_backward", "/usr/lib/python3/site-packages/torch/autograd/graph.py", 9)
BACKWARD = CallSiteName("main", "/home/user/train.py", 43)
HOOK = CallSiteName("log_gradient", "/home/user/train.py", 7)
LOADING = CallSiteName("load_batch", "/home/user/train.py", 57)
OPTIMIZER = CallSiteName("step", "/usr/lib/python3/site-packages/torch/optim/adam.py", 3)


def ddp_world(phase: Phase = Phase.BACKWARD, kind: RecordKind = RecordKind.OPERATION) -> FakeWorld:
    """Build ranks 0 and 1 with a DDP bucket in flight that lacks rank 2, which waits for them in another group."""
    world = FakeWorld(3)
    for rank in (0, 1):
        world.ranks[rank].label = "DDP bucket 0"
        world.ranks[rank].enter(DDP, 2.0, blocking=False, flags=Flag.ASYNC, phase=phase, line=43)
    name = "broadcast" if kind is RecordKind.OPERATION else "new_group"
    world.ranks[2].enter(SEED, 3.0, name, kind=kind, line=40)
    return world


def test_backward_waits_for_what_it_has_issued() -> None:
    """Ranks in `backward` wait for DDP's bucket: a circle, with the operation and the line of each rank."""
    world = ddp_world()
    for rank in (0, 1):
        world.ranks[rank].engage(OccupationKind.BACKWARD, 1.9)
    verdict = located_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1, 2))
    assert describe_verdict(verdict, 18) == (
        "ranks 0-2 have waited for each other for 18.0 s: "
        "ranks 0-1 in all_reduce (default_pg) at train.py:43; "
        "rank 2 in broadcast (seed) at train.py:40. "
        "Ranks 0-1 wait for rank 2 in all_reduce (DDP bucket 0, sequence 1, default_pg) at train, train.py:43; "
        "rank 2 waits for rank 0 in broadcast (sequence 1, seed) at train, train.py:40"
    )


def test_creation_of_a_group() -> None:
    """A rank that creates a group, like a DataLoader for its seed, has skipped nothing. Its line is stated once."""
    world = ddp_world(kind=RecordKind.RENDEZVOUS)
    for rank in (0, 1):
        world.ranks[rank].engage(OccupationKind.BACKWARD, 1.9)
    verdict = located_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.CIRCULAR, (0, 1, 2))
    assert describe_verdict(verdict, 18).endswith("rank 2 waits for rank 0 in new_group (seed) at train, train.py:40")


def test_stack_in_the_engine() -> None:
    """If `backward` is not recorded, the stack shows that the thread is in autograd's C++ code."""
    world = ddp_world()
    for rank in (0, 1):
        world.ranks[rank].write_stacks(19.0, ThreadStack(MAIN, "MainThread", (ENGINE, BACKWARD)))
    assert named(world.snapshot(20.0)) == (VerdictKind.CIRCULAR, (0, 1, 2))


def test_hook_that_does_not_return() -> None:
    """A line of the program within `backward` is a hook that hangs: its rank is absent, and the others are not."""
    world = ddp_world()
    world.ranks[1].engage(OccupationKind.BACKWARD, 1.9)
    world.ranks[0].engage(OccupationKind.BACKWARD, 1.9)
    world.ranks[0].write_stacks(19.0, ThreadStack(MAIN, "MainThread", (HOOK, ENGINE, BACKWARD)))
    verdict = located_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (0,))
    assert "it is in log_gradient at train.py:7" in describe_verdict(verdict, 17)


def test_stack_of_before() -> None:
    """A stack from before the operation is no evidence about it."""
    world = ddp_world()
    for rank in (0, 1):
        world.ranks[rank].engage(OccupationKind.BACKWARD, 1.9)
        world.ranks[rank].write_stacks(1.0, ThreadStack(MAIN, "MainThread", (LOADING,)))
    assert located_verdict(world.snapshot(20.0)).kind is VerdictKind.CIRCULAR


def test_bucket_without_any_sign_of_a_wait() -> None:
    """Without a record or stack, no rank that has issued a bucket is called absent."""
    verdict = located_verdict(ddp_world().snapshot(20.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.CYCLE)


def prefetching_world() -> FakeWorld:
    """Build rank 1 with an FSDP all_gather in flight; rank 0 waits for rank 1 in another group."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    world.ranks[1].enter(group_of(0, 1, nth=1), 2.0, "all_gather_into_tensor", blocking=False, flags=Flag.ASYNC)
    return world


def test_prefetch_is_no_wait() -> None:
    """A rank that loads a batch while an operation is in flight is absent, at its line."""
    world = prefetching_world()
    world.ranks[1].write_stacks(19.0, ThreadStack(MAIN, "MainThread", (LOADING,)))
    verdict = located_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))
    assert "it is in load_batch at train.py:57" in describe_verdict(verdict, 19)


def test_lock_at_a_line_of_the_program() -> None:
    """A rank blocked in C at its line may wait for the operation in flight, so it is not called absent."""
    world = prefetching_world()
    world.ranks[1].write_stacks(19.0, ThreadStack(MAIN, "MainThread", (LOADING,), is_locked=True))
    verdict = located_verdict(world.snapshot(20.0))
    assert (verdict.kind, verdict.doubt) == (VerdictKind.UNKNOWN, Doubt.CYCLE)


def test_backward_does_not_wait_for_what_was_issued_before() -> None:
    """`backward` does not wait for operations issued before it."""
    world = prefetching_world()
    world.ranks[1].engage(OccupationKind.BACKWARD, 3.0)
    assert named(world.snapshot(20.0)) == (VerdictKind.ABSENT, (1,))


@pytest.mark.parametrize("engagement", [OccupationKind.FUTURE, OccupationKind.OPTIMIZER_STEP])
def test_waits_after_the_call(engagement: OccupationKind) -> None:
    """A thread that waits for a future waits for operations it has issued. An optimizer step waits for its device."""
    world = FakeWorld(2)
    world.ranks[0].enter(group_of(0, 1), 1.0)
    on_device = Flag.ON_DEVICE if engagement is OccupationKind.OPTIMIZER_STEP else Flag.ASYNC
    number = world.ranks[1].enter(group_of(0, 1, nth=1), 2.0, blocking=False, flags=on_device)
    if engagement is OccupationKind.OPTIMIZER_STEP:
        world.ranks[1].begin_on_device(number, 2.0)
    world.ranks[1].engage(engagement, 3.0)
    world.ranks[1].write_stacks(19.0, ThreadStack(MAIN, "MainThread", (OPTIMIZER, LOADING)))
    assert named(world.snapshot(20.0)) == (VerdictKind.CIRCULAR, (0, 1))


def test_other_threads_of_a_rank_do_not_wait_for_it() -> None:
    """The backward pass of one thread does not wait for operations issued by another thread."""
    world = prefetching_world()
    world.ranks[1].engage(OccupationKind.BACKWARD, 1.0, thread=MAIN + 1)
    assert named(world.snapshot(20.0)) == (VerdictKind.ABSENT, (1,))
