"""Verdicts on exchanges with mismatched split sizes: while they hang, after deaths in them, and later."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.judging.mismatched import find_cause
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag, How
from otel_torchdist.model.operations import Splits
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.judging import located_verdict, named, spoken

ROW = 16


def splits_of(sent: tuple[int, ...], expected: tuple[int, ...]) -> Splits:
    """Build splits in rows of sixteen bytes."""
    out, back = (tuple(ROW * part for part in parts) for parts in (sent, expected))
    return Splits(out, max(out), sum(back), back, ROW)


def exchange(
    world: FakeWorld, group: GroupView, odd: int, to: int, rows: int = 3, absent: tuple[int, ...] = ()
) -> dict[int, int]:
    """Let all members exchange five rows each, except from `odd` to `to`, and return their calls."""
    numbers: dict[int, int] = {}
    members = group.name.ranks
    for rank in sorted({*members} - {*absent}):
        world.ranks[rank].groups[group.key] = group
        sent = tuple(rows if rank == odd and other == to else 5 for other in members)
        numbers[rank] = world.ranks[rank].enter(
            group,
            10.0,
            "all_to_all_single",
            shape=(sum(sent), 4),
            message_bytes=ROW * sum(sent),
            splits=splits_of(sent, (5,) * len(members)) if rank == odd else None,
        )
    return numbers


def test_while_it_hangs(world: FakeWorld, group: GroupView) -> None:
    """While the exchange hangs, both ranks are named, with the sent and the expected size."""
    exchange(world, group, odd=1, to=2)
    snapshot = world.snapshot(20.1)
    verdict = located_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (1, 2))
    assert spoken(snapshot, verdict).startswith(
        "rank 1 sends 3 rows to rank 2, which expects 5, in all_to_all_single (sequence 2, default_pg) at train, "
        "train.py:42; rank 1 is in all_to_all_single, called in train at train.py:42; 4 of 4 ranks wait. "
        "The operation has been blocked for 10.1 s"
    )


def test_at_once(world: FakeWorld, group: GroupView) -> None:
    """The mismatch is reported once both ranks of a pair have entered, without waiting for other ranks."""
    exchange(world, group, odd=1, to=2, absent=(0, 3))
    assert named(world.snapshot(10.5)) == (VerdictKind.MISMATCHED, (1, 2))


def test_ranks_of_a_group() -> None:
    """Members of a subgroup are named by global rank."""
    world, experts = FakeWorld(4), group_of(1, 3, description="ep")
    exchange(world, experts, odd=3, to=1, rows=7)
    snapshot = world.snapshot(20.0)
    verdict = located_verdict(snapshot)
    assert spoken(snapshot, verdict).startswith("rank 3 sends 7 rows to rank 1, which expects 5, in all_to_all_single")


def test_ranks_that_died_in_it(world: FakeWorld, group: GroupView) -> None:
    """If the backend ends the receiver and the others fail, the mismatch is reported, not the death."""
    numbers = exchange(world, group, odd=1, to=2, rows=8)
    for rank in (0, 1, 3):
        world.ranks[rank].end(numbers[rank], 10.2, How.FAILED, "RuntimeError")
    world.ranks[2].die(10.2)
    operation_id = world.ranks[2].open[numbers[2]].operation_id
    verdict = Judge(world.snapshot(10.4), THRESHOLD_NS).verdict_on(operation_id)
    assert verdict is not None
    assert (verdict.kind, verdict.ranks) == (VerdictKind.MISMATCHED, (1, 2))


def test_sizes_that_nobody_recorded(world: FakeWorld, group: GroupView) -> None:
    """Splits that one side did not record are no mismatch."""
    for rank in world.ranks:
        lost = rank.rank == 2
        rank.enter(
            group,
            10.0,
            "all_to_all_single",
            flags=Flag.UNEVEN if lost else Flag(0),
            message_bytes=4 * ROW * (7 if lost else 5),
        )
    assert located_verdict(world.snapshot(21.0)).kind is VerdictKind.TRANSPORT


@pytest.mark.parametrize(
    ("backend", "is_missing", "kind", "ranks"),
    [
        ("nccl", False, VerdictKind.MISMATCHED, (1, 2)),
        ("nccl", True, VerdictKind.ABSENT, (3,)),
        ("gloo", False, VerdictKind.TRANSPORT, ()),
    ],
)
def test_everybody_has_come_out(
    world: FakeWorld, group: GroupView, backend: str, is_missing: bool, kind: VerdictKind, ranks: tuple[int, ...]
) -> None:
    """A completed exchange explains a later operation that all ranks are in, if transfers have no boundaries."""
    group = dataclasses.replace(group, name=dataclasses.replace(group.name, backend=backend))
    numbers = exchange(world, group, odd=1, to=2)
    for rank in world.ranks:
        rank.end(numbers[rank.rank], 10.1)
        if not (is_missing and rank.rank == 3):
            rank.enter(group, 11.0, "all_reduce")
    snapshot = world.snapshot(22.0)
    verdict = located_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (kind, ranks)
    assert find_cause(snapshot.ranks, verdict.operation_id) is None
