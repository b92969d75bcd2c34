"""Jobs of several nodes that end at once: their calls are compared once, by the agent that sees most of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from otel_torchdist.model.finding import Finding
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.stall.events import Follows, Leads, Role
from tests.support.worlds.detectors import EVERYBODY, Accompanied
from tests.support.worlds.fake_world import FakeWorld

HERE = (2, 3)
ODD = 3
OVER_S = 3.0


class ShortJob(Accompanied):
    """A job of two nodes with one mismatched call on one rank; all ranks have ended by 3 s."""

    def __init__(self, shown: Collection[int]) -> None:
        self.role: Role | None = None
        super().__init__(FakeWorld(4), lambda world: self.role or Leads(world, 2), only=shown)
        for rank in self.world.ranks:
            rank.end(rank.enter(EVERYBODY, 1.0, dtype="int32" if rank.rank == ODD else "float32"), 1.001)

    def check_until_over(self) -> None:
        """Run until just after the end."""
        self.until(OVER_S)
        for rank in self.world.ranks:
            rank.die(OVER_S, TapeState.FINISHED)
        self.until(OVER_S + 0.25)

    def snapshot(self) -> WorldSnapshot:
        """The snapshots of the agent."""
        snapshot = super().snapshot()
        groups = {EVERYBODY.key: EVERYBODY}
        return dataclasses.replace(
            snapshot, ranks={rank: dataclasses.replace(view, groups=groups) for rank, view in snapshot.ranks.items()}
        )

    @property
    def found(self) -> list[tuple[int, ...]]:
        """The ranks of each finding."""
        return [event.ranks for _, event in self.events if isinstance(event, Finding)]


def test_other_nodes_that_come_late() -> None:
    """Half of the ranks are not seen yet when the others have ended: no conclusion from those alone for 2 s."""
    job = ShortJob(HERE)
    job.check_until_over()
    job.until(OVER_S + 1.5)
    assert job.found == []
    job.only = range(4)
    job.until(OVER_S + 3.0)
    assert job.found == [(ODD,)]


def test_other_nodes_that_never_come() -> None:
    """Findings from the ranks that are seen are reported after four seconds."""
    job = ShortJob(HERE)
    job.check_until_over()
    job.until(OVER_S + 5.0)
    assert job.found == [HERE]


def test_judge_that_leaves_first() -> None:
    """The leading agent has compared all ranks, and is gone: the other one does not compare half of them again."""
    job = ShortJob(HERE)
    job.role = Follows(None)
    job.check_until_over()
    job.role = None
    job.until(OVER_S + 30.0)
    assert job.detector.process([job.snapshot()], is_last=True) == []
    assert job.found == []


def test_judge_that_leaves_while_ranks_live() -> None:
    """An agent that led while the ranks ran has not compared them to the end: the one that follows it does."""
    job = ShortJob(HERE)
    job.role = Follows(None)
    job.until(OVER_S - 1.0)
    job.role = None
    job.check_until_over()
    job.until(OVER_S + 5.0)
    assert job.found == [HERE]
