"""Verdicts on mismatched calls: the difference, the named rank, and legal differences."""

import dataclasses
from typing import Any

import pytest

from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.judge.world.mismatch import Field, Mismatch, compare
from otel_torchdist.model.calls import Arrival, Channel, GroupView, OperationId
from otel_torchdist.model.kinds import Flag, How, RecordKind, TapeState
from otel_torchdist.model.names import SignatureName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import FakeRank, FakeWorld, group_of
from tests.support.worlds.judging import the_verdict

EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")
NCCL = dataclasses.replace(EVERYBODY, name=dataclasses.replace(EVERYBODY.name, backend="nccl"))


def the_mismatch(world: WorldSnapshot) -> Mismatch:
    """Return the mismatch of the verdict."""
    verdict = the_verdict(world)
    assert verdict.kind is VerdictKind.MISMATCHED
    assert verdict.mismatch is not None
    assert verdict.ranks == verdict.mismatch.ranks
    return verdict.mismatch


def enter(rank: FakeRank, operation: str, at_s: float = 10.0, **differs: Any) -> int:
    """Enter the next operation of the default group."""
    return rank.enter(EVERYBODY, at_s, operation, **differs)


def odd_world(operation: str, odd_operation: str, group: GroupView = EVERYBODY, **differs: Any) -> FakeWorld:
    """Let all ranks complete one operation, and then rank 2 make a different call than the others."""
    world = FakeWorld(4)
    world.meet(group, 1.0)
    for rank in world.ranks:
        if rank.rank == 2:
            rank.enter(group, 10.0, odd_operation, **differs)
        else:
            rank.enter(group, 10.0, operation, peer=0 if operation == "broadcast" else -1)
    return world


@pytest.mark.parametrize(
    ("odd", "field"),
    [
        ({}, None),
        ({"operation": "broadcast"}, Field.OPERATION),
        ({"dtypes": ("float64",)}, Field.DTYPE),
        ({"reduce_op": "max"}, Field.REDUCE_OP),
    ],
)
def test_shapes_that_were_left_out(odd: dict[str, Any], field: Field | None) -> None:
    """If ranks stop recording shapes at different times, names are compared, but shapes are not."""
    full = SignatureName("all_reduce", "sum", ((4, 4),), ("float32",), "cpu", 1)
    capped = dataclasses.replace(full, shapes=(), **odd)
    channel = Channel(RecordKind.OPERATION, EVERYBODY.key)
    arrivals = {0: Arrival(7, full, -1), 1: Arrival(7, full, -1), 2: Arrival(7, capped, -1)}
    found = compare(arrivals, OperationId(channel, 7))
    assert (found and found.field) == field
    assert field is None or (found is not None and found.ranks == (2,))


def test_shapes_that_were_left_out_on_one_rank() -> None:
    """If one rank omits shapes, the shapes of the other ranks are compared."""
    full = SignatureName("all_reduce", "sum", ((4, 4),), ("float32",), "cpu", 1)
    other, capped = (dataclasses.replace(full, shapes=shapes) for shapes in (((5, 5),), ()))
    arrivals = {rank: Arrival(7, signature, -1) for rank, signature in enumerate((full, full, capped, other))}
    found = compare(arrivals, OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), 7))
    assert found is not None
    assert (found.field, found.ranks) == (Field.SHAPE, (3,))


@pytest.mark.parametrize(
    ("operation", "odd", "differs", "field", "said"),
    [
        (
            "all_reduce",
            "broadcast",
            {"peer": 0},
            Field.OPERATION,
            "rank 2 is in broadcast at train, train.py:42, where ranks 0-1,3 are in all_reduce at train, train.py:42; "
            "4 of 4 ranks wait. This has blocked all_reduce (sequence 2, default_pg) for 15.0 s",
        ),
        (
            "all_reduce",
            "all_reduce",
            {"dtype": "float64"},
            Field.DTYPE,
            "rank 2 has dtype float64 where ranks 0-1,3 have float32 in all_reduce (sequence 2, default_pg)",
        ),
        (
            "all_reduce",
            "all_reduce",
            {"shape": (8, 1)},
            Field.SHAPE,
            "rank 2 has shape 8 elements where ranks 0-1,3 have 16 elements in all_reduce (sequence 2, default_pg)",
        ),
        (
            "all_reduce",
            "all_reduce",
            {"reduce_op": "max"},
            Field.REDUCE_OP,
            "rank 2 has reduce op max where ranks 0-1,3 have sum in all_reduce (sequence 2, default_pg)",
        ),
        (
            "broadcast",
            "broadcast",
            {"peer": 2},
            Field.ROOT,
            "rank 2 has root rank 2 where ranks 0-1,3 have rank 0 in broadcast (sequence 2, default_pg)",
        ),
    ],
)
def test_the_odd_one_out_is_named(operation: str, odd: str, differs: dict[str, Any], field: Field, said: str) -> None:
    """One rank differs from three: it is named, with both values."""
    snapshot = odd_world(operation, odd, **differs).snapshot(25.0)
    mismatch = the_mismatch(snapshot)
    assert (mismatch.field, mismatch.ranks, mismatch.operation_id.sequence) == (field, (2,), 2)
    if not said.endswith(" s"):
        said += " at train, train.py:42, and the operation has been blocked for 15.0 s; 4 of 4 ranks wait"
    assert describe_verdict(the_verdict(snapshot), 15) == said


def test_without_a_majority_all_are_named() -> None:
    """Two ranks against two: all are named."""
    world = FakeWorld(4)
    for rank in world.ranks:
        enter(rank, "all_reduce", dtype="float32" if rank.rank < 2 else "bfloat16")
    snapshot = world.snapshot(25.0)
    mismatch = the_mismatch(snapshot)
    assert (mismatch.has_majority, mismatch.ranks) == (False, (0, 1, 2, 3))
    assert describe_verdict(the_verdict(snapshot), 15).startswith(
        "ranks disagree on the dtype of all_reduce (sequence 1, default_pg) at train, train.py:42: "
        "ranks 0-1 have float32, ranks 2-3 have bfloat16, and the operation has been blocked for 15.0 s"
    )


def test_rank_that_skipped_one_is_found_where_it_went_astray() -> None:
    """Rank 2 left out a broadcast and has been one call ahead since: the first difference is reported, not the last."""
    world = FakeWorld(4)
    for rank in world.ranks:
        if rank.rank != 2:
            rank.end(enter(rank, "broadcast", 1.0), 1.1)
        rank.end(enter(rank, "all_reduce", 2.0), 2.1)
    for rank in world.ranks:
        enter(rank, "all_reduce")
    mismatch = the_mismatch(world.snapshot(25.0))
    assert (mismatch.field, mismatch.ranks, mismatch.operation_id.sequence) == (Field.OPERATION, (2,), 1)
    assert mismatch.parties == (("broadcast", (0, 1, 3)), ("all_reduce", (2,)))


def test_one_that_is_over_counts_too() -> None:
    """A rank with another dtype may leave an operation of gloo: its call is remembered, and it is named."""
    world = odd_world("all_reduce", "all_reduce", dtype="int64")
    world.ranks[2].end(2, 11.0)
    mismatch = the_mismatch(world.snapshot(25.0))
    assert (mismatch.field, mismatch.ranks) == (Field.DTYPE, (2,))


def test_mismatch_comes_before_the_deaths_that_it_causes() -> None:
    """If a backend ends processes with mismatched calls, the mismatch is reported, not the death."""
    world = odd_world("all_reduce", "all_reduce", shape=(1024,))
    world.ranks[2].end(2, 11.0, How.FAILED, "RuntimeError")
    world.ranks[2].die(11.5, TapeState.FAILED, "RuntimeError")
    snapshot = world.snapshot(12.0)
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (2,))
    assert "shape 1,024 elements" in describe_verdict(verdict, 2)


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all_single", "reduce_scatter"])
def test_sizes_of_their_own_are_legal(operation: str) -> None:
    """Some operations take different sizes from each rank: a rank that has not entered is absent."""
    world = odd_world(operation, operation, NCCL, shape=(3,))
    for rank in (0, 2):
        world.ranks[rank].end(2, 11.0)
    assert the_verdict(world.snapshot(25.0)).kind is VerdictKind.TRANSPORT


@pytest.mark.parametrize("wants_one_size", [False, True])
def test_sizes_in_all_gather(wants_one_size: bool) -> None:
    """Ranks may gather tensors of different sizes, but not with gloo, which ends such ranks."""
    passed = [SignatureName("all_gather", "", ((size,),), ("float32",), "cpu", 1) for size in (8, 8, 3)]
    arrivals = {rank: Arrival(7, signature, -1, wants_one_size=wants_one_size) for rank, signature in enumerate(passed)}
    found = compare(arrivals, OperationId(Channel(RecordKind.OPERATION, EVERYBODY.key), 7))
    assert (found and (found.field, found.ranks)) == ((Field.SHAPE, (2,)) if wants_one_size else None)


def test_same_number_of_elements_is_legal() -> None:
    """Backends do not compare dimensions."""
    world = odd_world("all_reduce", "all_reduce", shape=(4, 4))
    assert the_verdict(world.snapshot(25.0)).kind is VerdictKind.TRANSPORT


def test_sends_and_receives_are_not_compared() -> None:
    """The two sides of a send and receive are different operations."""
    world = FakeWorld(2)
    pair = group_of(0, 1)
    world.ranks[0].enter(pair, 1.0, "send", flags=Flag.POINT_TO_POINT, peer=1)
    world.ranks[1].enter(pair, 1.0, "recv", flags=Flag.POINT_TO_POINT, peer=0)
    assert the_verdict(world.snapshot(25.0)).kind is VerdictKind.TRANSPORT


def test_counts_that_cannot_be_compared_are_not() -> None:
    """If recording began after a group's first call, ranks count from different calls: nothing is compared."""
    world = FakeWorld(2)
    pair = group_of(0, 1, aligned=False)
    world.ranks[0].enter(pair, 1.0, "all_reduce")
    world.ranks[1].enter(pair, 1.0, "broadcast")
    assert the_verdict(world.snapshot(25.0)).kind is VerdictKind.UNKNOWN
