"""Stalls of jobs that gave up, and the last comparisons of short jobs."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Collection

from otel_torchdist.judge.stall.events import Follows, Leads, Role, VerdictGiven
from otel_torchdist.judge.stall.reporting.spans import incident_spans
from otel_torchdist.judge.stall.run_watch import RunWatch
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.verdict import Verdict
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.names import GIVEN_UP
from otel_torchdist.model.reports.finding import Finding
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import WorldSnapshot
from tests.judge.verdict.test_first_death import KILL, busy, end_others
from tests.support.worlds.detectors import EVERYBODY, Accompanied, Watching
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld, group_of

# --- A rank that only ended after another one is not shown like the one that was first --------------------------------


def test_bars_of_a_stall() -> None:
    """The bar of the first death says `dead`; the bars of ranks that the launcher ended say `followed`."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    world.ranks[2].is_seen_to_die(6.02, KILL)
    end_others(world, 6.14)
    watching.until(9.0)
    ((_, given),) = watching.verdicts
    _, *bars = incident_spans(given)
    assert [bar.name for bar in bars] == ["rank 2: dead", "rank 0: followed", "rank 1: followed", "rank 3: followed"]


# --- Ranks whose backends give up: the verdict comes at once, and names the rank they waited for ----------------------


ALL = group_of(0, 1, 2)


def verdicts_at(world: FakeWorld, watch: RunWatch, *looks_s: float) -> list[Verdict]:
    """Return the verdicts given at these polls."""
    events = [event for at_s in looks_s for event in watch.judge(world.snapshot(at_s))]
    return [event.verdict for event in events if isinstance(event, VerdictGiven)]


def two_wait_for_one() -> tuple[FakeWorld, RunWatch]:
    """Let ranks 0 and 1 wait for rank 2 from second 1 on; the threshold is ten seconds."""
    world = FakeWorld(3)
    world.meet(ALL, 0.1)
    for rank in (0, 1):
        world.ranks[rank].enter(ALL, 1.0)
    return world, RunWatch(StallRules(10 * SECOND), START_NS)


def test_verdict_before_the_threshold() -> None:
    """When a backend gives up, the wait is a stall at any age, and late rank 2 is named."""
    world, watch = two_wait_for_one()
    assert verdicts_at(world, watch, 2.0) == []
    world.ranks[0].failure = GIVEN_UP
    first = verdicts_at(world, watch, *(3.0 + 0.5 * look for look in range(12)))[0]
    assert (first.kind, first.ranks) == (VerdictKind.ABSENT, (2,))


def test_ranks_that_gave_up_are_not_the_dead() -> None:
    """Backends end the waiting ranks before the next poll: the verdict still names the late rank, and no death."""
    world, watch = two_wait_for_one()
    assert verdicts_at(world, watch, 2.0) == []
    for rank in (0, 1):
        world.ranks[rank].is_seen_to_die(3.0 + rank / 100, signal.SIGABRT, failure=GIVEN_UP)
    first = verdicts_at(world, watch, *(3.5 + 0.5 * look for look in range(12)))[0]
    assert (first.kind, first.ranks) == (VerdictKind.ABSENT, (2,))


def test_a_death_that_made_them_give_up() -> None:
    """A rank that died before the timeout, without a record, is named as dead."""
    world, watch = two_wait_for_one()
    world.ranks[2].is_seen_to_die(2.5, signal.SIGKILL)
    world.ranks[0].failure = world.ranks[1].failure = GIVEN_UP
    first = verdicts_at(world, watch, *(3.0 + 0.5 * look for look in range(12)))[0]
    assert (first.kind, first.ranks) == (VerdictKind.DEAD, (2,))


def test_an_announcement_that_came_to_nothing() -> None:
    """A rank that continues after its backend gave up, and ends cleanly, is neither dead nor waiting."""
    world, watch = two_wait_for_one()
    world.ranks[0].failure = GIVEN_UP
    for rank in (0, 1):
        world.ranks[rank].end(2, 1.5)
        world.ranks[rank].die(4.0, TapeState.FINISHED)
    world.ranks[2].die(4.0, TapeState.FINISHED)
    assert verdicts_at(world, watch, 4.5, 5.0, 20.0) == []


# ----------------------------------------------------------------------------------------------------------------------
# Short jobs on several nodes: their calls are compared once, by the agent that sees most ranks.


HERE = (2, 3)
ODD = 3
OVER_S = 3.0


class ShortJob(Accompanied):
    """A job on two nodes with one mismatched call on one rank. All ranks end by second 3."""

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
    """If half of the ranks are not seen yet when the others have ended, no finding is reported for 2 s."""
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
    """The judging agent has compared all ranks and is gone: the other agent does not compare half of them again."""
    job = ShortJob(HERE)
    job.role = Follows(None)
    job.check_until_over()
    job.role = None
    job.until(OVER_S + 30.0)
    assert job.detector.process([job.snapshot()], is_last=True) == []
    assert job.found == []


def test_judge_that_leaves_while_ranks_live() -> None:
    """A judging agent that leaves while ranks run has not made the last comparisons: its successor does."""
    job = ShortJob(HERE)
    job.role = Follows(None)
    job.until(OVER_S - 1.0)
    job.role = None
    job.check_until_over()
    job.until(OVER_S + 5.0)
    assert job.found == [HERE]
