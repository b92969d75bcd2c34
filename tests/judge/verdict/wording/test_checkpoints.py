"""Checkpoints in verdicts: they change sentences and delays, but never the named rank."""

from __future__ import annotations

import dataclasses

import pytest

from otel_torchdist.judge.verdict.circumstances import MAX_ADDED_NS, PATIENCE, takes_its_usual_time
from otel_torchdist.judge.verdict.verdict import locate
from otel_torchdist.judge.verdict.wording.sentence import describe_verdict
from otel_torchdist.model.rank_state.occupations import CheckpointView, RankCheckpoints
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from tests.support.worlds.detectors import EVERYBODY, THRESHOLD_S, Watching
from tests.support.worlds.fake_world import SECOND, START_NS, FakeWorld
from tests.support.worlds.judging import the_verdict

MAIN, OTHER = 100, 200
"""Threads."""
PATH = "/ckpt/1200"


def checkpoint(
    stage: str,
    *,
    operation: str = "save",
    path: str = PATH,
    thread: int = MAIN,
    since_s: float = 1.0,
    usual_s: float = 0.0,
    meeting: str = "write",
    message_bytes: int = 0,
) -> RankCheckpoints:
    """Add a checkpoint to a rank's thread."""
    since_ns = START_NS + round(since_s * SECOND)
    usual_ns = round(usual_s * SECOND)
    one = CheckpointView(operation, path, thread, meeting, stage, since_ns, message_bytes, usual_ns)
    return RankCheckpoints((one,))


def saving(usual_s: float = 0.0, thread: int = MAIN, waiting_thread: int = MAIN) -> FakeWorld:
    """Let rank 2 write since second 1, and the others wait for it in the same save."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1, "scatter")
    for rank in world.ranks:
        if rank.rank != 2:
            rank.enter(EVERYBODY, 1.2, "gather", thread=waiting_thread)
            rank.checkpoints = checkpoint("", thread=waiting_thread)
    world.ranks[2].checkpoints = checkpoint("write_data", thread=thread, usual_s=usual_s, message_bytes=410_000_000)
    return world


def said(world: FakeWorld, now_s: float = 64.0) -> str:
    """Return the sentence of the only verdict."""
    snapshot = world.snapshot(now_s)
    verdict = the_verdict(snapshot)
    assert verdict.ranks == (2,)
    return describe_verdict(locate(snapshot, verdict), now_s - 1.2)


def test_the_whole_sentence() -> None:
    """The sentence has the named rank's stage first, then the stage in which the others wait."""
    assert said(saving()) == (
        "rank 2 is in checkpoint save /ckpt/1200, write_data, for 63.0 s (410 MB), and has not entered gather "
        "(sequence 2, default_pg) for 62.8 s; it was last in scatter, called in train at train.py:42. "
        "3 of 4 ranks wait in stage write of the checkpoint"
    )


def test_the_rest_is_as_without_it() -> None:
    """The named rank and the kind are the same with and without checkpoints."""
    world = saving()
    verdict = the_verdict(world.snapshot(64.0))
    for rank in world.ranks:
        rank.checkpoints = RankCheckpoints()
    assert the_verdict(world.snapshot(64.0)).agrees_with(verdict)


def test_another_thread_in_the_same_save() -> None:
    """In an asynchronous save, a missing background thread may not have entered any operation yet."""
    assert "is in checkpoint save /ckpt/1200, write_data" in said(saving(thread=OTHER, waiting_thread=OTHER))


def test_a_thread_that_has_nothing_to_do_with_it() -> None:
    """If the others wait in training, a background thread that saves is not the reason for the absence."""
    world = saving(thread=OTHER, usual_s=60.0)
    for rank in world.ranks:
        if rank.rank != 2:
            rank.checkpoints = RankCheckpoints()
    assert said(world).startswith("rank 2 has not entered gather")
    watching = Watching(world).until(1.2 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_another_checkpoint() -> None:
    """A rank still in the previous checkpoint is not described as being in the others' checkpoint."""
    world = saving()
    world.ranks[2].checkpoints = checkpoint("write_data", path="/ckpt/1100")
    assert said(world).startswith("rank 2 has not entered gather")


def test_a_file_of_one_rank() -> None:
    """Rank 2 alone writes a file while the others wait in a barrier: its only communicating thread is named saving."""
    world = FakeWorld(4)
    world.meet(EVERYBODY, 0.1)
    for rank in world.ranks:
        if rank.rank != 2:
            rank.enter(EVERYBODY, 1.0, "barrier")
    world.ranks[2].checkpoints = checkpoint("", operation="torch.save", path="model.pt", meeting="")
    assert said(world).startswith("rank 2 is in torch.save model.pt, for 63.0 s, and has not entered barrier ")


def test_dead() -> None:
    """For a rank killed in a stage, the stage and its duration until then are stated."""
    world = saving()
    world.ranks[2].is_seen_to_die(4.0, 9)
    snapshot = world.snapshot(8.0)
    verdict = locate(snapshot, the_verdict(snapshot))
    assert verdict.kind is VerdictKind.DEAD
    assert "; it was in checkpoint save /ckpt/1200, write_data, for 3.0 s (410 MB). " in describe_verdict(verdict, 6.8)


def test_patience() -> None:
    """A stage that usually takes 12 s is reported only after five times as long, plus the threshold."""
    world = saving(usual_s=12.0)
    watching = Watching(world).until(1.0 + PATIENCE * 12.0)
    assert watching.reported == []
    watching.until(1.0 + PATIENCE * 12.0 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


def test_the_first_save() -> None:
    """Without a usual duration, only the threshold counts."""
    watching = Watching(saving()).until(1.2 + THRESHOLD_S + 2)
    assert [event.verdict.ranks for _, event in watching.verdicts] == [(2,)]


@pytest.mark.parametrize(("state", "is_reported"), [("T", True), ("D", False)])
def test_patience_with_a_process_that_does_not_run(state: str, is_reported: bool) -> None:
    """A rank in a disk wait is excused; a rank stopped by a signal is not."""
    world = saving(usual_s=60.0)
    world.ranks[2].stopped = state
    world.ranks[2].stopped_since_s = 2.0
    watching = Watching(world).until(1.2 + THRESHOLD_S + 4)
    assert [event.verdict.kind for _, event in watching.verdicts] == [VerdictKind.FROZEN] * is_reported


def test_patience_is_bounded() -> None:
    """The excuse is bounded: a save that takes an hour each time may not take five."""
    [one] = checkpoint("write_data", usual_s=3600.0).open
    until_ns = one.since_ns + one.usual_ns + MAX_ADDED_NS
    assert takes_its_usual_time(one, until_ns - 1)
    assert not takes_its_usual_time(one, until_ns)
    assert not takes_its_usual_time(dataclasses.replace(one, usual_ns=0), one.since_ns + 1)
