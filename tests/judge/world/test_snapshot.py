"""Snapshots of real tapes."""

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.rules import waits_of
from otel_torchdist.judge.verdict.verdict import Doubt, Verdict
from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.channels import MAX_CHANNELS
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.kinds import Flag, How, RecordKind, RunIdState, TapeState
from otel_torchdist.model.names import CallSiteName, GroupName, SignatureName
from otel_torchdist.model.rank_state.stacks import ThreadStack
from otel_torchdist.model.reports.verdict_kinds import VerdictKind
from otel_torchdist.node.job.requests.stacks import write_stacks
from otel_torchdist.tape.layout import LiveWord, Word
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.repository import REPOSITORY
from tests.support.tapes.fake_tape import PAIR, RUN_ID, SECOND, FollowedTape

LEAVE_A_TAPE = """
import os, sys
from pathlib import Path
from otel_torchdist.tape.identity import identify
from otel_torchdist.model.kinds import RunIdState
from otel_torchdist.tape.writer import TapeWriter
tape = TapeWriter(Path(sys.argv[1]), identify(1, 1, 2, 64))
if int(sys.argv[2]):
    tape.set_run_id(int(sys.argv[2]), RunIdState.AGREED)
os._exit(0)
"""
"""A rank 1 that died, of the run whose id is the second argument; 0 if it did not know it yet."""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[FollowedTape]]:
    """Two ranks of one run."""
    pair = [FollowedTape(tmp_path, rank) for rank in (0, 1)]
    yield pair
    for rank in pair:
        rank.close()


def channel(group: GroupName = PAIR) -> Channel:
    """The channel of a group's collectives."""
    return Channel(RecordKind.OPERATION, group.key)


def test_view_resolves_names(ranks: list[FollowedTape]) -> None:
    """A snapshot has the rank, its run, and its open operation with resolved names."""
    ranks[0].run(1)
    ranks[0].enter(2, at_ns=5 * SECOND)
    view = ranks[0].view()
    assert (view.rank, view.run, view.alive, view.state, view.losses) == (0, RUN_ID, True, TapeState.RUNNING, 0)
    (operation,) = view.open
    assert (operation.name, operation.label, operation.operation_id) == ("all_reduce", "DDP", (channel(), 2))
    assert operation.call_site == CallSiteName("train", "/home/ada/train.py", 42)
    assert operation.group is not None
    assert (operation.group.key, operation.group.label) == (PAIR.key, "default_pg")
    assert operation.waiting_since_ns == 5 * SECOND
    assert view.last is not None
    assert view.last.record.sequence == 1
    assert view.progress[channel()][:2] == (2, 1)
    identity = ranks[0].writer.identity
    assert abs(view.wall_offset_ns - (identity.realtime_ns - identity.monotonic_ns)) < SECOND


def test_operation_that_raised_in_the_call_was_not_entered(ranks: list[FollowedTape]) -> None:
    """An operation that raised in the call was not entered. The next operation gets its number, even between polls."""
    ranks[0].run(1)
    ranks[0].run(2, how=How.FAILED, failure="ValueError")
    progress = ranks[0].view().progress[channel()]
    assert (progress.entered, progress.failed, progress.failure) == (1, 2, "ValueError")
    ranks[1].run(1)
    ranks[1].enter(2)
    verdict = verdict_of(ranks)
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (0,))
    ranks[0].run(2)
    assert ranks[0].view().progress[channel()][:3] == (2, 2, 0)
    ranks[0].run(3, how=How.FAILED, failure="ValueError")
    ranks[0].run(3)
    assert ranks[0].view().progress[channel()][:3] == (3, 3, 0)


def verdict_of(ranks: list[FollowedTape], now_ns: int = 20 * SECOND) -> Verdict:
    """Return the verdict on the longest wait."""
    for rank in ranks:
        rank.poll()
    (world,) = worlds([rank.follower for rank in ranks], now_ns)
    verdict = Judge(world, 10 * SECOND).verdict_on(waits_of(world)[0].operation.operation_id)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("returned", "waited", "since_ns"),
    [(False, False, SECOND), (True, False, None), (True, True, 7 * SECOND)],
)
def test_evidence_of_what_ends_by_wait(
    ranks: list[FollowedTape], returned: bool, waited: bool, since_ns: int | None
) -> None:
    """An operation with its end in `Work.wait` waits during the call and during the wait, not in between."""
    number = ranks[0].enter(1, name="recv", flags=Flag.POINT_TO_POINT | Flag.END_BY_WAIT, peer=1)
    if returned:
        ranks[0].writer.mark(number, Word.RETURNED, 10, How.CALL)
    if waited:
        ranks[0].writer.mark(number, Word.WAIT_ENTERED, 6 * SECOND, How.CALL)
    (operation,) = ranks[0].view().open
    assert operation.waiting_since_ns == since_ns
    assert operation.operation_id.channel == Channel(RecordKind.OPERATION, PAIR.key, 1, 0, 0)


def test_lapped_tape_blames_no_rank(tmp_path: Path) -> None:
    """If a rank overwrites its ring between two polls, its calls are unknown, so it is not blamed."""
    ranks = [FollowedTape(tmp_path, 0), FollowedTape(tmp_path, 1)]
    other = GroupName("1", "other", (1,), 0, "gloo", True)
    ranks[0].run(1)
    ranks[1].run(1)
    for rank in ranks:
        rank.poll()
    ranks[0].enter(2)
    for sequence in range(1, 200):
        ranks[1].run(sequence, group=other)
    verdict = verdict_of(ranks)
    assert ranks[1].reader.lost > 0
    assert (verdict.kind, verdict.doubt, verdict.ranks) == (VerdictKind.UNKNOWN, Doubt.RECORDS_LOST, ())
    for rank in ranks:
        rank.close()


def test_loss_behind_the_last_record_counts(ranks: list[FollowedTape]) -> None:
    """Lost records without a gap came after the records read, so later calls may be missing."""
    ranks[0].run(1)
    batch = ranks[0].reader.poll()
    ranks[0].follower.observe(dataclasses.replace(batch, lost=1))
    view = ranks[0].view()
    assert view.progress[channel()].losses < view.losses


def test_reader_that_comes_late_still_blames(tmp_path: Path) -> None:
    """A process that takes over finds an overwritten ring, but the records it reads have no gap: it may blame."""
    ranks = [FollowedTape(tmp_path, rank) for rank in (0, 1)]
    for sequence in range(1, 200):
        for rank in ranks:
            rank.run(sequence)
    ranks[0].enter(200)
    for rank in ranks:
        rank.follow()
    verdict = verdict_of(ranks)
    assert ranks[1].reader.lost > 0
    assert (verdict.kind, verdict.ranks) == (VerdictKind.ABSENT, (1,))
    for rank in ranks:
        rank.close()


def test_losses_are_healed_by_the_next_operation(tmp_path: Path) -> None:
    """After a loss, a rank that enters the group again can be judged again."""
    ranks = [FollowedTape(tmp_path, rank) for rank in (0, 1)]
    for sequence in range(1, 200):
        ranks[1].run(sequence)
        if sequence % 20 == 0:
            ranks[0].poll()
        ranks[0].run(sequence)
    for rank in ranks:
        rank.poll()
        rank.run(200)
        rank.poll()
    ranks[0].enter(201)
    assert ranks[1].reader.lost > 0
    assert verdict_of(ranks).ranks == (1,)
    for rank in ranks:
        rank.close()


def test_stacks_come_with_a_later_view(ranks: list[FollowedTape]) -> None:
    """Requests do not block. The answer appears once the rank has written it, and belongs to its request."""
    assert ranks[0].view().stacks is None
    ranks[0].follower.ask_for_stacks(9 * SECOND)
    asked = ranks[0].view().stacks
    assert asked is not None
    assert (asked.asked_ns, asked.threads) == (9 * SECOND, None)
    request = ranks[0].writer.pending_request()
    stack = ThreadStack(7, "MainThread", (CallSiteName("load", "/home/ada/train.py", 57),))
    write_stacks(ranks[0].writer.path, request, [stack])
    answered = ranks[0].view().stacks
    assert answered is not None
    assert answered.threads == (stack,)
    ranks[0].follower.ask_for_stacks(11 * SECOND)
    again = ranks[0].view().stacks
    assert again is not None
    assert again.threads is None


def test_runs_are_kept_apart(tmp_path: Path) -> None:
    """Attempts of a job share a directory: each run id forms a run; dead ranks without a run id form none."""
    old, new = FollowedTape(tmp_path, 0, run=1), FollowedTape(tmp_path, 0, run=2)
    unknown = FollowedTape(tmp_path, 1, run=0)
    found = worlds([old.follower, new.follower, unknown.follower], SECOND)
    assert {world.run: sorted(world.ranks) for world in found} == {1: [0], 2: [0], 0: [1]}
    for rank in (old, new, unknown):
        rank.close()


def test_rank_that_does_not_know_its_run_is_of_the_one_that_lives(tmp_path: Path) -> None:
    """A rank that is stopped or killed before it knows its run id belongs to the live run."""
    known, unknown = FollowedTape(tmp_path, 0), FollowedTape(tmp_path, 1, run=0)
    (world,) = worlds([unknown.follower, known.follower], SECOND)
    assert (world.run, sorted(world.ranks)) == (RUN_ID, [0, 1])
    unknown.close()
    subprocess.run([sys.executable, "-c", LEAVE_A_TAPE, str(tmp_path), "0"], check=True, timeout=60, cwd=REPOSITORY)
    [path] = {*tmp_path.glob("*.tape")} - {known.writer.path, unknown.writer.path}
    killed = TapeFollower(TapeReader(path))
    (world,) = worlds([killed, known.follower], time.monotonic_ns())
    assert world.ranks[1].is_dead
    killed.reader.close()
    known.close()


def test_rank_that_died_before_a_run_began_is_not_of_it(tmp_path: Path) -> None:
    """A rank of an earlier attempt that ended without a run id is no death of the next attempt."""
    subprocess.run([sys.executable, "-c", LEAVE_A_TAPE, str(tmp_path), "0"], check=True, timeout=60, cwd=REPOSITORY)
    (path,) = tmp_path.glob("*.tape")
    dead, after = TapeFollower(TapeReader(path)), FollowedTape(tmp_path, 0)
    (world,) = worlds([dead, after.follower], time.monotonic_ns())
    assert sorted(world.ranks) == [0]
    dead.reader.close()
    after.close()


def test_view_remembers_what_was_entered_last(ranks: list[FollowedTape]) -> None:
    """Each channel keeps a fixed number of last calls, with signature and root."""
    for sequence in range(1, 12):
        ranks[0].run(sequence)
    ranks[0].enter(12, name="broadcast", peer=1)
    recent = ranks[0].view().progress[channel()].recent
    assert [arrival.sequence for arrival in recent] == list(range(5, 13))
    assert (recent[-1].signature, recent[-1].root) == (
        SignatureName("broadcast", "sum", ((4,),), ("float32",), "cpu", 1),
        1,
    )


def test_dead_ranks_of_the_attempt_before_are_left_out(tmp_path: Path) -> None:
    """A restarted rank may first read the run id of the previous attempt, whose dead ranks are left out."""
    subprocess.run(
        [sys.executable, "-c", LEAVE_A_TAPE, str(tmp_path), f"{RUN_ID}"], check=True, timeout=60, cwd=REPOSITORY
    )
    (path,) = tmp_path.glob("*.tape")
    dead = TapeFollower(TapeReader(path))
    now_ns = time.monotonic_ns()
    after = FollowedTape(tmp_path, 0)
    after.writer.set_run_id(RUN_ID, RunIdState.PROVISIONAL)
    (world,) = worlds([dead, after.follower], now_ns)
    assert sorted(world.ranks) == [0]
    after.writer.set_run_id(RUN_ID, RunIdState.AGREED)
    (world,) = worlds([dead, after.follower], now_ns)
    assert sorted(world.ranks) == [0, 1]
    dead.reader.close()
    after.close()


def test_rank_that_was_seen_alive_is_of_this_attempt(tmp_path: Path) -> None:
    """A rank that dies within its first second has an old heartbeat, but was seen alive: it belongs to this attempt."""
    died, after = FollowedTape(tmp_path, 1), FollowedTape(tmp_path, 0)
    after.writer.set_run_id(RUN_ID, RunIdState.PROVISIONAL)
    died.writer.set_run_id(RUN_ID, RunIdState.PROVISIONAL)
    followers = [died.follower, after.follower]
    worlds(followers, time.monotonic_ns())
    died.writer.close()
    (world,) = worlds(followers, time.monotonic_ns())
    assert world.ranks[1].heartbeat_ns < world.ranks[0].created_ns
    assert world.ranks[1].is_dead
    after.close()


def test_damaged_tape_is_left_out(ranks: list[FollowedTape]) -> None:
    """A tape with unreadable words is left out; the others are read."""
    ranks[0].writer.view().cast("Q")[LiveWord.STATE] = 1
    (world,) = worlds([rank.follower for rank in ranks], SECOND)
    assert list(world.ranks) == [1]


def test_tags_do_not_grow_without_bound(ranks: list[FollowedTape]) -> None:
    """Channels of old tags are forgotten. After that, an unknown channel proves nothing."""
    for tag in range(MAX_CHANNELS + 1):
        number = ranks[0].enter(1, name="send", flags=Flag.POINT_TO_POINT, peer=1, tag=tag)
        ranks[0].writer.complete(number, SECOND, 2 * SECOND, How.CALL)
        if tag % 32 == 31:
            ranks[0].poll()
    view = ranks[0].view()
    assert view.forgotten
    assert 0 < len(view.progress) < MAX_CHANNELS


@pytest.mark.thorough
def test_checks_are_cheap_with_thousands_of_groups(tmp_path: Path) -> None:
    """With eight ranks of 2,000 groups each, a poll takes a small part of the quarter second between two polls."""
    written = [FollowedTape(tmp_path, rank, capacity=4096) for rank in range(8)]
    for nth in range(2_000):
        for rank in written:
            rank.run(1, group=dataclasses.replace(PAIR, nth=nth))
    for rank in written:
        rank.poll()
    worlds([rank.follower for rank in written], SECOND)
    best_s = 1.0
    for turn in range(5):
        for rank in written:
            rank.run(2 + turn)
            rank.poll()
        began = time.perf_counter()
        worlds([rank.follower for rank in written], SECOND)
        best_s = min(best_s, time.perf_counter() - began)
    assert best_s < 0.025
    for rank in written:
        rank.close()
