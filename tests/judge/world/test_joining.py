"""Runs that share a standalone process group are judged together; nothing is claimed about unknown members."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from otel_torchdist.judge.verdict.verdict import Doubt, Verdict, locate
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.judge.world.assembly import mark_late_kills, worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.judge.world.joining import joined
from otel_torchdist.model.calls import GroupView
from otel_torchdist.model.kinds import Flag, TapeState
from otel_torchdist.model.names import GroupName
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.model.snapshot import RankView, WorldSnapshot
from otel_torchdist.model.text import MemberRank, name_ranks
from tests.support.tapes.fake_tape import SECOND, FakeTape
from tests.support.worlds.fake_world import RUN, START_NS, THRESHOLD_NS, FakeRank, group_of
from tests.support.worlds.judging import the_verdict

NOW_S = 30.0
TRAINERS, ENGINE = 0, 1
ALL = group_of(0, 1, description="default_pg")


def transfer(here: int, nth: int = 0, world: str = "transfer@29655/2") -> GroupView:
    """Build the group of a trainer (its rank 0) and an engine (its rank 1), as seen by one of them."""
    name = GroupName("transfer", "", (0, 1), nth, "gloo", True, world=world, world_rank=here)
    return GroupView(name.key, name, frozenset((0, 1)))


class Process(FakeRank):
    """A process in groups of several worlds."""

    def seen(
        self,
        *groups: GroupView,
        nonce: int,
        size: int = 2,
        world: str = "",
        created_s: float = 0.0,
        now_s: float = NOW_S,
    ) -> RankView:
        """Return the view of its tape."""
        return dataclasses.replace(
            self.view(now_s),
            nonce=nonce,
            created_ns=START_NS + round(created_s * SECOND),
            groups={group.key: group for group in groups},
            world_ranks={group.key: group.name.world_rank for group in groups if group.name.world},
            world=world,
            world_size=size,
        )


def engine_of(engine: Process, nonce: int = 9, created_s: float = 0.0) -> dict[int, RankView]:
    """Build the run of an engine that is in no other world."""
    return {1: engine.seen(transfer(1), nonce=nonce, world="transfer@29655/2", created_s=created_s)}


def snapshot_of(runs: Mapping[int, Mapping[int, RankView]]) -> WorldSnapshot:
    """Return the snapshot of the trainers, with all joined processes."""
    return WorldSnapshot(RUN, START_NS + round(NOW_S * SECOND), mark_late_kills(joined(runs)[TRAINERS]))


def said(snapshot: WorldSnapshot, verdict: Verdict) -> str:
    """Return the verdict as a sentence."""
    return describe_verdict(locate(snapshot, verdict), verdict.age_ns(snapshot.taken_ns) / SECOND)


def waiting_trainers() -> dict[int, RankView]:
    """Let trainer rank 0 wait in the transfer group's broadcast, and rank 1 wait for it in the default group."""
    trainers = [Process(0), Process(1)]
    trainers[0].enter(transfer(0), 2, "broadcast")
    trainers[1].enter(ALL, 3)
    return {
        0: trainers[0].seen(ALL, transfer(0), nonce=1),
        1: trainers[1].seen(ALL, nonce=2),
    }


def test_engine_that_is_busy() -> None:
    """Waits across two worlds lead to the engine, and one sentence has both groups and the line of each wait."""
    snapshot = snapshot_of({TRAINERS: waiting_trainers(), ENGINE: engine_of(Process(1))})
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (2,))
    assert said(snapshot, verdict) == (
        "rank 1 of transfer has not entered broadcast (sequence 1, transfer) for 28.0 s; "
        "rank 0 waits for it at train, train.py:42; "
        "rank 1 waits for rank 0 in all_reduce (sequence 1, default_pg) at train, train.py:42"
    )


def test_trainer_that_is_late() -> None:
    """A late trainer rank, for which another rank and the engine wait, is named by its own number."""
    trainers, engine = [Process(0), Process(1)], Process(1)
    trainers[0].enter(ALL, 2)
    engine.enter(transfer(1), 3, "broadcast")
    ranks = {0: trainers[0].seen(ALL, transfer(0), nonce=1), 1: trainers[1].seen(ALL, nonce=2)}
    snapshot = snapshot_of({TRAINERS: ranks, ENGINE: engine_of(engine)})
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))
    assert not isinstance(verdict.ranks[0], MemberRank)
    assert said(snapshot, verdict) == (
        "rank 1 has not entered all_reduce (sequence 1, default_pg) for 28.0 s; "
        "rank 0 waits for it at train, train.py:42; "
        "rank 1 of transfer waits for rank 0 in broadcast (sequence 1, transfer) at train, train.py:42"
    )


def test_engine_without_a_tape() -> None:
    """The transfer group's rank 1 is not the trainer's rank 1: without a tape of the engine, no rank is named."""
    verdict = the_verdict(snapshot_of({TRAINERS: waiting_trainers()}))
    assert (verdict.kind, verdict.ranks, verdict.doubt) == (VerdictKind.UNKNOWN, (), Doubt.SILENT)


def test_engine_with_ranks_of_its_own() -> None:
    """An engine's default group has the same rank numbers as the trainer's, but its calls are not confused."""
    engines = [Process(0), Process(1)]
    engines[0].enter(ALL, 1, "all_gather")  # waits for the engine's rank 1, which is in no world with the trainer
    ranks = {0: engines[0].seen(ALL, transfer(1), nonce=8), 1: engines[1].seen(ALL, nonce=9)}
    snapshot = snapshot_of({TRAINERS: waiting_trainers(), ENGINE: ranks})
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.operation) == (VerdictKind.ABSENT, "all_gather")
    assert name_ranks(verdict.ranks) == f"rank 1 of run {f'{RUN:032x}'[:8]}"


def test_run_with_ranks_elsewhere() -> None:
    """A run with ranks on other nodes is judged alone, without confusing members of the shared world with its ranks."""
    ranks = {rank: dataclasses.replace(view, world_size=4) for rank, view in waiting_trainers().items()}
    found = joined({TRAINERS: ranks, ENGINE: engine_of(Process(1))})
    assert [sorted(found[TRAINERS]), sorted(found[ENGINE])] == [[0, 1], [1]]
    [group] = [one.group for one in found[TRAINERS][0].open if one.group is not None]
    assert sorted(group.members) == [0, 4]


def test_engine_that_was_started_again() -> None:
    """Of two engines with the same rank in a world, the one that is gone does not count."""
    before, now = Process(1), Process(1)
    before.enter(transfer(1), 1, "broadcast")
    before.die(10, TapeState.RUNNING)
    snapshot = snapshot_of(
        {TRAINERS: waiting_trainers(), ENGINE: engine_of(before, 8), 2: engine_of(now, 9, created_s=1.0)}
    )
    assert [view.nonce for view in snapshot.in_order] == [1, 2, 9]
    assert the_verdict(snapshot).ranks == (2,)


def test_trainer_that_was_started_again() -> None:
    """A rank of the run stays in it when another process takes its rank in a standalone process group."""
    trainers = [Process(0), Process(1)]
    trainers[0].die(10, TapeState.RUNNING)
    ranks = {0: trainers[0].seen(ALL, transfer(0), nonce=1), 1: trainers[1].seen(ALL, nonce=2)}
    again = {0: Process(0).seen(transfer(0), nonce=8, world="transfer@29655/2", created_s=1.0)}
    snapshot = snapshot_of({TRAINERS: ranks, ENGINE: engine_of(Process(1)), 2: again})
    assert {view.nonce for view in snapshot.in_order} >= {1, 2}


def test_engine_of_an_earlier_time() -> None:
    """An engine that ended before the trainer began is not joined, even if both used the same port."""
    before = Process(1)
    before.die(5)
    late = {
        rank: dataclasses.replace(view, created_ns=view.created_ns + 60 * SECOND)
        for rank, view in waiting_trainers().items()
    }
    assert sorted(joined({TRAINERS: late, ENGINE: engine_of(before)})[TRAINERS]) == [0, 1]


def test_engine_that_is_ended_after_the_trainer() -> None:
    """An engine that is killed after the trainer has finished is no death."""
    trainers = {0: Process(0), 1: Process(1)}
    for trainer in trainers.values():
        trainer.die(20, TapeState.FINISHED)
    engine = Process(1)
    engine.is_seen_to_die(21, status=15)
    ranks = {0: trainers[0].seen(transfer(0), nonce=1), 1: trainers[1].seen(nonce=2)}
    snapshot = snapshot_of({TRAINERS: ranks, ENGINE: engine_of(engine)})
    assert [view.is_dead for view in snapshot.in_order] == [False, False, False]


def test_engine_that_dies() -> None:
    """An engine that is killed while the trainer waits for it is dead, and named by its rank in the shared world."""
    engine = Process(1)
    engine.is_seen_to_die(10, status=9)
    snapshot = snapshot_of({TRAINERS: waiting_trainers(), ENGINE: engine_of(engine)})
    verdict = the_verdict(snapshot)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (2,))
    assert said(snapshot, verdict).startswith("rank 1 of transfer was killed by SIGKILL")


def test_messages_of_another_world() -> None:
    """A message in a standalone process group connects its processes, not the ranks of the run with these numbers."""
    trainer = Process(0)
    trainer.enter(transfer(0), 1, "recv", flags=Flag.POINT_TO_POINT, peer=1)
    ranks = {0: trainer.seen(ALL, transfer(0), nonce=1), 1: Process(1).seen(ALL, nonce=2)}
    snapshot = snapshot_of({TRAINERS: ranks, ENGINE: engine_of(Process(1))})
    [operation] = snapshot.ranks[0].open
    channel = operation.operation_id.channel
    assert (channel.source, channel.destination) == (2, 0)
    assert the_verdict(snapshot).ranks == (2,)


def test_run_without_such_a_world() -> None:
    """A run without a standalone process group stays unchanged."""
    view = Process(0).seen(ALL, nonce=1)
    assert joined({TRAINERS: {0: view}}) == {TRAINERS: {0: view}}
    assert THRESHOLD_NS < NOW_S * SECOND


def test_tape_of_another_user(tmp_path: Path) -> None:
    """Tapes of a user that claim a world of another user's run are not joined with that run."""
    followers: list[TapeFollower] = []
    for here, world in ((0, ""), (1, "transfer@29655/2")):
        (tmp_path / str(here)).mkdir()
        tape = FakeTape(tmp_path / str(here), here, here + 1, run_id=here + 1, world=world)
        tape.begin(group=transfer(here).name, at=SECOND)
        followers.append(TapeFollower(tape.reader))
        followers[-1].observe(tape.reader.poll())
    assert [len(world.ranks) for world in worlds(followers, SECOND)] == [2]
    followers[1].reader.owner = 12345
    assert [len(world.ranks) for world in worlds(followers, SECOND)] == [1, 1]
