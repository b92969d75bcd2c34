"""Scripts for simulated jobs of up to 4,096 ranks: run without processes, each has the verdict of its job."""

from __future__ import annotations

import dataclasses
from typing import Final

import pytest

from otel_torchdist.analysis.reproducer.facts import ScriptOrigin
from otel_torchdist.analysis.reproducer.plan import plan
from otel_torchdist.analysis.reproducer.rank_mapping import MAX_RANKS_TO_KEEP_ALL
from otel_torchdist.analysis.reproducer.script import NotReproducibleError
from otel_torchdist.analysis.reproducer.source import source_of
from otel_torchdist.judge.verdict.past.post_mortem import examine
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.analysis.reproducer.recorded import history_of
from tests.analysis.reproducer.rehearsal import verdict_on
from tests.jobs.faults.simulated.worlds import World, random_world
from tests.support.worlds.fake_world import RUN, THRESHOLD_NS

SEEDS: Final = 40
FEW: Final = 8
NOT_BY_A_SCRIPT: Final = (VerdictKind.STUCK, VerdictKind.TRANSPORT, VerdictKind.UNKNOWN, VerdictKind.UNREACHABLE)


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(FEW, SEEDS))]
)
def test_same_verdict(seed: int) -> None:
    """The script has the job's verdict, with few ranks; or an error gives the reason why there is no script."""
    world = random_world(seed)
    snapshot = world.at(3_600.0)
    views = [dataclasses.replace(view, heartbeat_ns=snapshot.taken_ns) for view in world.views.values()]
    found = examine(RUN, world.size, views, StallRules(THRESHOLD_NS), snapshot.taken_ns)
    groups = {one.group.key: one.group for view in views for one in view.open if one.group is not None}
    histories = [history_of(view, groups, world.size) for view in views]
    origin = ScriptOrigin("a test", "it hangs", world.size, "a test")
    if found.verdict is None:
        assert world.fault.verdict is None
        return
    if found.verdict.kind in NOT_BY_A_SCRIPT:
        with pytest.raises(NotReproducibleError):
            plan(found.verdict, snapshot, histories, origin)
        return
    script = plan(found.verdict, snapshot, histories, origin)
    compile(source_of(script, "hang.py"), "hang.py", "exec")
    copy = verdict_on(script)
    assert copy is not None
    assert (copy.kind, copy.ranks) == (found.verdict.kind, script.named)
    assert {rank for place in script.named for rank in script.stand_for[place]} == {*found.verdict.ranks}
    assert copy.operation == found.verdict.operation
    where = copy.operation_id if copy.mismatch is None else copy.mismatch.operation_id
    assert where.sequence == script.sequence
    if copy.mismatch is not None and found.verdict.mismatch is not None:
        assert copy.mismatch.field is found.verdict.mismatch.field
    assert len(script.steps) <= MAX_RANKS_TO_KEEP_ALL or found.verdict.kind is VerdictKind.CIRCULAR
    assert world.fault.verdict is found.verdict.kind


@pytest.mark.thorough
def test_worlds_are_of_all_kinds() -> None:
    """The worlds above have every verdict that a script can reproduce, and large jobs."""
    worlds: list[World] = [random_world(seed) for seed in range(SEEDS)]
    kinds = {world.fault.verdict for world in worlds}
    assert {
        VerdictKind.ABSENT,
        VerdictKind.DEAD,
        VerdictKind.FROZEN,
        VerdictKind.MISMATCHED,
        VerdictKind.CIRCULAR,
    } <= kinds
    assert max(world.size for world in worlds) > 1_000
