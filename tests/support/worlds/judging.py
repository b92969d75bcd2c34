"""Judges simulated worlds, and puts verdicts into words."""

from __future__ import annotations

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.rules import waits_of
from otel_torchdist.judge.verdict.verdict import Verdict, locate
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeWorld, group_of


def verdicts(world: WorldSnapshot) -> dict[OperationId, Verdict | None]:
    """The verdict on every operation in which a rank waits."""
    judge = Judge(world, THRESHOLD_NS)
    return {wait.operation.operation_id: judge.verdict_on(wait.operation.operation_id) for wait in waits_of(world)}


def the_verdict(world: WorldSnapshot) -> Verdict:
    """The only verdict to which every waiting operation leads; without places."""
    found = list(verdicts(world).values())
    assert found
    first = found[0]
    assert first is not None
    assert all(other is not None and first.agrees_with(other) for other in found)
    return first


def named(world: WorldSnapshot) -> tuple[VerdictKind, tuple[int, ...]]:
    """The kind of the only verdict, and the ranks that it names."""
    verdict = the_verdict(world)
    return verdict.kind, verdict.ranks


EVERYBODY = group_of(0, 1, 2, 3, description="default_pg")


def located_verdict(world: WorldSnapshot) -> Verdict:
    """The only verdict to which every waiting operation leads, with places."""
    return locate(world, the_verdict(world))


def spoken(world: WorldSnapshot, verdict: Verdict) -> str:
    """The verdict in words, without the next step."""
    return describe_verdict(verdict, (world.taken_ns - verdict.since_ns) / 1e9)


def late_world(*late: int, size: int = 4) -> FakeWorld:
    """All ranks but `late` have been in an all_reduce since second 10."""
    world = FakeWorld(size)
    world.meet(EVERYBODY, 1.0)
    for rank in set(range(size)) - set(late):
        world.ranks[rank].enter(EVERYBODY, 10.0)
    return world


def operation_id_of(world: FakeWorld, rank: int) -> OperationId:
    """Where a rank waits."""
    return next(iter(world.ranks[rank].open.values())).operation_id
