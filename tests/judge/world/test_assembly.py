"""The assembly of runs: ranks of one user and, without a run id, of one job directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.judge.stall.watch import Detector
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.world.assembly import of_newest_launch, worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.ids import run_id_of_claim
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.snapshot import RankView
from tests.support.tapes.fake_tape import RUN_ID, SECOND, FollowedTape
from tests.support.worlds.fake_world import START_NS, FakeWorld

STRANGER = 12345


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Create two job directories."""
    first, second = tmp_path / "here", tmp_path / "there"
    first.mkdir()
    second.mkdir()
    return first, second


@pytest.fixture
def ranks() -> Iterator[list[FollowedTape]]:
    """Provide a list of ranks that are closed after the test."""
    made: list[FollowedTape] = []
    yield made
    for rank in made:
        rank.close()


def test_ranks_of_another_job_that_starts(directories: tuple[Path, Path], ranks: list[FollowedTape]) -> None:
    """Ranks without a run id belong to the job in their directory, and to no job in another directory."""
    known, stray = FollowedTape(directories[0], 0), FollowedTape(directories[1], 1, run=0)
    ranks += known, stray
    found = worlds([known.follower, stray.follower], SECOND)
    assert sorted((world.run, sorted(world.ranks)) for world in found) == [(0, [1]), (RUN_ID, [0])]


def test_two_jobs_that_start(directories: tuple[Path, Path], ranks: list[FollowedTape]) -> None:
    """Ranks of two jobs without run ids do not wait for each other."""
    ranks += FollowedTape(directories[0], 0, run=0), FollowedTape(directories[1], 1, run=0)
    found = worlds([rank.follower for rank in ranks], SECOND)
    assert sorted(sorted(world.ranks) for world in found) == [[0], [1]]
    assert Detector(StallRules(SECOND), 0).process(found) == []


def test_one_run_in_two_directories(directories: tuple[Path, Path], ranks: list[FollowedTape]) -> None:
    """One user's ranks with the same run id form one run, wherever their tapes are."""
    ranks += FollowedTape(directories[0], 0), FollowedTape(directories[1], 1)
    [world] = worlds([rank.follower for rank in ranks], SECOND)
    assert (world.run, sorted(world.ranks), world.is_foreign) == (RUN_ID, [0, 1], False)


def test_run_id_of_another_user(directories: tuple[Path, Path], ranks: list[FollowedTape]) -> None:
    """A user who writes another user's run id on tapes gets a separate run."""
    own, theirs = FollowedTape(directories[0], 0), FollowedTape(directories[1], 1)
    ranks += own, theirs
    theirs.reader.owner = STRANGER
    found = {world.is_foreign: world for world in worlds([own.follower, theirs.follower], SECOND)}
    assert (found[False].run, sorted(found[False].ranks)) == (RUN_ID, [0])
    assert (found[True].run, sorted(found[True].ranks)) == (run_id_of_claim(RUN_ID, STRANGER), [1])
    [alone] = worlds([theirs.follower], SECOND)
    assert (alone.run, alone.is_foreign) == (RUN_ID, True)


def test_ranks_of_one_launch() -> None:
    """A rank that failed before the others had tapes belongs to their launch if their processes existed then.

    After all are gone, ranks seen alive together remain.
    """
    world = FakeWorld(3)
    began_ns = dict.fromkeys(range(3), START_NS + SECOND // 5)
    world.ranks[1].created_s = world.ranks[2].created_s = 2.0
    world.ranks[0].die(1.2, TapeState.FAILED)
    views = dict(world.snapshot(3.0).ranks)
    assert sorted(of_newest_launch(views, began_ns)) == [0, 1, 2]
    later = {**began_ns, 1: START_NS + 2 * SECOND, 2: START_NS + 2 * SECOND}
    assert sorted(of_newest_launch(views, later)) == [1, 2]
    for rank in world.ranks[1:]:
        rank.die(5.0)
    views = dict(world.snapshot(6.0).ranks)
    assert sorted(of_newest_launch(views, began_ns)) == [0, 1, 2]
    unseen = {rank: dataclasses.replace(view, seen_alive_ns=0) for rank, view in views.items()}
    assert of_newest_launch(unseen, began_ns) == {}


def test_two_processes_of_one_rank(directories: tuple[Path, Path], ranks: list[FollowedTape]) -> None:
    """If two live processes claim the same rank of a launch, the ids of both are known."""
    ranks += (
        FollowedTape(directories[0], 0, run=0),
        FollowedTape(directories[0], 1, run=0),
        FollowedTape(directories[0], 1, run=0),
    )
    own, other = ranks[2].follower.reader, ranks[1].follower.reader
    other.identity = dataclasses.replace(other.identity, pid=own.identity.pid + 1)
    [world] = worlds([rank.follower for rank in ranks], SECOND)
    assert sorted(world.ranks[1].twins) == [own.identity.pid, own.identity.pid + 1]
    assert world.ranks[0].twins == ()


class Stray(TapeFollower):
    """A tape that cannot be interpreted."""

    looks = 0

    def view(self, now_ns: int) -> RankView | None:
        """Fail."""
        self.looks += 1
        raise TypeError("astray")


def test_rank_of_which_no_sense_can_be_made(directories: tuple[Path, Path], ranks: list[FollowedTape]) -> None:
    """A tape that cannot be interpreted is marked as failed and ignored; the other ranks are seen."""
    ranks += FollowedTape(directories[0], 0), FollowedTape(directories[0], 1)
    stray = Stray(ranks[1].reader)
    for _ in range(3):
        [world] = worlds([ranks[0].follower, stray], SECOND)
        assert sorted(world.ranks) == [0]
    assert stray.looks == 1
    assert isinstance(stray.failure, TypeError)
