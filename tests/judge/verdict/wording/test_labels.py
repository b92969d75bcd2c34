"""Labels of operations in sentences: FSDP units, microbatches, mesh dimensions."""

from __future__ import annotations

import dataclasses

from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag
from otel_torchdist.model.names import LabelKind, LabelName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.fake_world import FakeWorld, group_of
from tests.support.worlds.judging import EVERYBODY, located_verdict, spoken

UNIT = LabelName(LabelKind.FSDP, unit="layers.3").text()
P2P = Flag.POINT_TO_POINT


def with_dimensions(group: GroupView, *names: str) -> GroupView:
    """Return the group with these mesh dimensions."""
    return dataclasses.replace(group, name=dataclasses.replace(group.name, dimensions=names))


def test_texts() -> None:
    """Buckets and microbatches count from 0, as in torch. The root unit has a name."""
    assert LabelName(LabelKind.FSDP).text() == "FSDP root"
    assert [LabelName(LabelKind.DDP).text(piece) for piece in (0, 1)] == ["DDP", "DDP bucket 0"]
    stage = LabelName(LabelKind.PIPELINE, stage=1, direction="bwd")
    assert [stage.text(piece) for piece in (0, 3)] == ["pipeline stage 1, bwd", "pipeline stage 1, bwd, microbatch 2"]


def test_unit_of_a_collective() -> None:
    """The unit is stated with the operation, and the missing rank's last unit with its last operation."""
    world = FakeWorld(4)
    for rank in world.ranks:
        rank.label = "FSDP layers.2"
    world.meet(EVERYBODY, 0.0, "all_gather")
    for rank in world.ranks[:3]:
        rank.label = UNIT
        rank.enter(EVERYBODY, 1.0, "all_gather")
    snapshot = world.snapshot(15.0)
    assert spoken(snapshot, located_verdict(snapshot)) == (
        "rank 3 has not entered all_gather (FSDP layers.3, sequence 2, default_pg) for 14.0 s; "
        "it was last in all_gather (FSDP layers.2), called in train at train.py:42; "
        "3 of 4 ranks wait at train.py:42"
    )


def test_other_labels_are_no_mismatch() -> None:
    """Equal calls for different units are no mismatch, and no unit is stated then."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.0)
    for rank in world.ranks[:3]:
        rank.label = f"FSDP layers.{rank.rank % 2}"
        rank.enter(EVERYBODY, 1.0)
    snapshot = world.snapshot(15.0)
    verdict = located_verdict(snapshot)
    assert (verdict.kind, verdict.mismatch) == (VerdictKind.ABSENT, None)
    assert spoken(snapshot, verdict).startswith("rank 3 has not entered all_reduce (sequence 2, default_pg) for 14.0 s")


def test_microbatch_of_a_message() -> None:
    """The label belongs to the waiting side. If the other side is named, the sentence says so."""
    for waiting, missing in (("recv", "send"), ("send", "recv")):
        world = FakeWorld(2)
        pair = group_of(0, 1, description="mesh_pp")
        world.ranks[1].label = "pipeline stage 1, fwd, microbatch 2"
        world.ranks[1].enter(pair, 1.0, waiting, flags=P2P, peer=0)
        ends = "from rank 0 to rank 1" if waiting == "recv" else "from rank 1 to rank 0"
        assert describe_verdict(located_verdict(world.snapshot(15.0)), 14).startswith(
            f"rank 0 has not entered {missing} (for {waiting} of pipeline stage 1, fwd, microbatch 2, {ends}, tag 0, "
            "sequence 1, mesh_pp) for 14.0 s; 1 of 2 ranks waits"
        )


def test_circle() -> None:
    """Each rank of a circle has its own label."""
    world = FakeWorld(2)
    for rank, name in enumerate("ab"):
        world.ranks[rank].label = f"FSDP {name}"
        world.ranks[rank].enter(group_of(0, 1, nth=rank, description=name), 1.0 + rank)
    assert describe_verdict(located_verdict(world.snapshot(20.0)), 19).startswith(
        "ranks 0-1 have waited for each other for 19.0 s: rank 0 in all_reduce (a) at train.py:42; rank 1 "
        "in all_reduce (b) at train.py:42. Rank 0 waits for rank 1 in all_reduce (FSDP a, sequence 1, a) at "
        "train, train.py:42; rank 1 waits for rank 0 in all_reduce (FSDP b, sequence 1, b)"
    )


def test_dimensions_of_meshes() -> None:
    """A group's title includes its mesh dimensions, unless its description already does."""
    assert with_dimensions(EVERYBODY, "dp").title == "default_pg, mesh dp"
    assert with_dimensions(EVERYBODY, "dp", "fsdp").title == "default_pg, mesh dp and fsdp"
    assert with_dimensions(group_of(0, 1, description="mesh_tp"), "tp").title == "mesh_tp"
    assert EVERYBODY.title == "default_pg"
