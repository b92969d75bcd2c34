"""Judges simulated worlds."""

from __future__ import annotations

from otel_torchdist.model.calls import OperationId
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import Verdict
from otel_torchdist.verdict.waits import waits_of
from tests.support.worlds.fake_world import THRESHOLD_NS


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
