"""Plans from recorded calls: the calls that are kept, the replacements, and the comments."""

from __future__ import annotations

from typing import Any, Final

from otel_torchdist.analysis.reproducer.facts import ScriptOrigin
from otel_torchdist.analysis.reproducer.plan import plan
from otel_torchdist.analysis.reproducer.script import Create, End, Script, ScriptCall, ScriptWait
from otel_torchdist.analysis.reproducer.source import source_of
from otel_torchdist.judge.verdict.past.post_mortem import stalled_verdict
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import Flag, RecordKind
from tests.analysis.reproducer.rehearsal import verdict_on
from tests.support.worlds.fake_world import THRESHOLD_NS, FakeWorld, group_of
from tests.support.worlds.schedule import RecordedRank

NOW_S: Final = 100.0


class RecordedWorld(FakeWorld):
    """A world whose ranks keep their calls."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.recorded = [RecordedRank(rank) for rank in range(size)]
        self.ranks = [*self.recorded]
        self.group = all_ranks(size)

    def wait(self, at_s: float, *ranks: int, **call: Any) -> None:
        """Let ranks wait in a call of the default group."""
        for rank in ranks:
            self.recorded[rank].enter(self.group, at_s, **call)

    def script(self) -> Script:
        """Return the script for the verdict on this world, after checking that the script has the same verdict."""
        size = len(self.recorded)
        world = self.snapshot(NOW_S)
        verdict = stalled_verdict(world, StallRules(THRESHOLD_NS))
        assert verdict is not None
        histories = [RankHistory(rank.rank, size, "node-1", 0, rank.calls, 0) for rank in self.recorded]
        script = plan(verdict, world, histories, ScriptOrigin("a test", "it hangs", size, "a test"))
        copy = verdict_on(script)
        assert copy is not None
        assert (copy.kind, copy.ranks) == (verdict.kind, script.named)
        return script


def all_ranks(size: int) -> GroupView:
    """Return the default group."""
    return group_of(*range(size), description="default_pg")


def calls_of(script: Script, rank: int) -> list[ScriptCall]:
    """Return the calls of a rank of the script."""
    return [step for step in script.steps[rank] if isinstance(step, ScriptCall)]


def test_only_the_last_calls() -> None:
    """Two of a hundred good calls are kept, and sequences are counted from them."""
    world = RecordedWorld(3)
    for at in range(100):
        world.meet(world.group, 0.01 * at)
    world.wait(2.0, 0, 1)
    script = world.script()
    assert [len(calls_of(script, rank)) for rank in range(3)] == [3, 3, 2]
    assert script.sequence == 3
    assert isinstance(script.steps[2][-1], End)
    assert "So sequence 101 of the job is sequence 3 here." in source_of(script, "hang.py").replace("\n# ", " ")


def test_overwritten_calls() -> None:
    """If one rank's ring holds fewer calls, all ranks begin at its first call."""
    world = RecordedWorld(3)
    for at in range(10):
        world.meet(world.group, 0.01 * at)
    del world.recorded[1].ended[:-1]
    world.wait(2.0, 0, 1)
    assert [len(calls_of(world.script(), rank)) for rank in range(3)] == [2, 2, 1]


def test_asynchronous_calls_hang_in_the_wait() -> None:
    """A call in flight stays in flight, and the rank hangs in its wait for the next one."""
    world = RecordedWorld(3)
    group, pair = all_ranks(3), group_of(0, 1, description="pair")
    for rank in world.recorded[:2]:
        rank.enter(group, 1.0, flags=Flag.ASYNC, blocking=False)
        second = rank.enter(group, 1.1, flags=Flag.ASYNC, blocking=False)
        rank.call(pair, 1.2)
        rank.wait_for(second, 2.0)
    script = world.script()
    assert [(call.work, call.hangs) for call in calls_of(script, 0)] == [(1, False), (0, True)]


def test_pending_call_is_waited_for() -> None:
    """A rank with a call in flight and no recorded wait, as in torch's C++ code, waits for the call at the end."""
    world = RecordedWorld(3)
    world.wait(1.0, 0, 1, flags=Flag.ASYNC, blocking=False)
    assert world.script().steps[0][1:] == (calls_of(world.script(), 0)[0], ScriptWait(1, hangs=True))


def test_messages_in_a_circle() -> None:
    """Sends and receives keep their peers and tags, and uninvolved ranks are left out."""
    world = RecordedWorld(5)
    world.meet(world.group, 0.0)
    world.recorded[2].enter(world.group, 1.0, "recv", flags=Flag.POINT_TO_POINT, peer=4, tag=7)
    world.recorded[4].enter(world.group, 1.0, "recv", flags=Flag.POINT_TO_POINT, peer=2)
    script = world.script()
    assert script.stand_for == {0: (2,), 1: (4,)}
    source = source_of(script, "hang.py")
    assert "dist.recv(torch.ones(16), src=1, tag=7)  # hangs" in source
    assert "dist.recv(torch.ones(16), src=0)  # hangs" in source


def test_many_ranks() -> None:
    """Few of 512 ranks remain, including the root, and parts of tensors fit the smaller group."""
    world = RecordedWorld(512)
    for rank in world.recorded:
        rank.call(world.group, 0.5, "broadcast", peer=300, reduce_op="")
        if rank.rank != 7:
            rank.enter(world.group, 1.0, "reduce_scatter_tensor", shape=(512 * 6, 2), dtype="bfloat16", reduce_op="avg")
    script = world.script()
    assert len(script.steps) <= 4
    assert {rank for ranks in script.stand_for.values() for rank in ranks} == set(range(512))
    source = source_of(script, "hang.py")
    assert calls_of(script, 0)[-1].shapes == ((6 * len(script.steps), 2),)
    assert "    torch.ones((6, 2), dtype=torch.bfloat16),\n" in source
    assert "sum replaces the reduce op avg" in source
    root = next(place for place, ranks in script.stand_for.items() if 300 in ranks)
    assert f"src={root})" in source


def test_differences_stay() -> None:
    """Replacements for types that gloo lacks keep different calls different."""
    world = RecordedWorld(3)
    for rank in world.recorded:
        rank.enter(world.group, 1.0, dtype="float8_e4m3fn" if rank.rank == 2 else "uint8")
    script = world.script()
    assert [calls_of(script, rank)[0].dtypes for rank in range(3)] == [("uint8",), ("uint8",), ("int8",)]


def test_large_tensors() -> None:
    """Tensors that would not fit into a gigabyte shrink, and different sizes stay different."""
    world = RecordedWorld(3)
    for rank in world.recorded:
        rank.enter(world.group, 1.0, shape=(1 << 30, 1 + (rank.rank == 2)))
    script = world.script()
    elements = [calls_of(script, rank)[0].shapes[0] for rank in range(3)]
    assert elements[0] == elements[1] < elements[2]
    assert sum(4 * shape[0] for shape in elements) <= 1 << 30


def test_rank_that_never_joins() -> None:
    """A rank that does not join the creation of a group stays away, after creating the default group."""
    world = RecordedWorld(3)
    group, others = all_ranks(3), group_of(0, 1, 2, description="others", nth=1)
    world.meet(group, 0.0)
    for rank in world.recorded[:2]:
        rank.enter(others, 1.0, "new_group", kind=RecordKind.RENDEZVOUS, sequence=2)
    script = world.script()
    assert [type(step) for step in script.steps[0]] == [Create, Create]
    assert [type(step) for step in script.steps[2]] == [Create, End]
