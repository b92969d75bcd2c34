"""Rows of the table, from real tapes."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.cli.output.rank_table import Doing, RankRow, rank_rows
from otel_torchdist.job.runs.deaths import write_death
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.lives import Death
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.verdict.model import Verdict, locate
from otel_torchdist.world.assembly import worlds
from otel_torchdist.world.following.follower import TapeFollower
from tests.support.tapes.fake_tape import SECOND, ClockedTape

THRESHOLD_S = 5.0


def rows_of(tapes: list[ClockedTape], verdict: Verdict | None = None) -> list[RankRow]:
    """The rows, `now_ns` being that of the first tape."""
    for tape in tapes:
        tape.reader.poll()
    return rank_rows([tape.reader for tape in tapes], verdict, THRESHOLD_S, tapes[0].now_ns)


def test_waiting_by_age(base: Path) -> None:
    """By its age an open operation makes a rank running, waiting or stalled; its line comes from its call site."""
    tape = ClockedTape(base, rank=0)
    tape.end_step()
    tape.enter()
    seen: list[RankRow] = []
    for seconds in (0.5, 1.5, 4.0):
        tape.pass_s(seconds)
        seen += rows_of([tape])
    assert [row.doing for row in seen] == [Doing.RUNNING, Doing.WAITING, Doing.STALLED]
    assert seen[-1] == RankRow(0, Doing.STALLED, 1, "all_reduce #1", 6.0, "train.py:42 train")


def test_nothing_open(base: Path) -> None:
    """A rank without an open operation is running, in its current step."""
    tape = ClockedTape(base, rank=1)
    tape.operation()
    tape.end_step()
    tape.end_step()
    assert rows_of([tape]) == [RankRow(1, Doing.RUNNING, step=2)]


def test_ends(base: Path) -> None:
    """Ranks that have ended, failed or died are distinguished, and rows are in the order of ranks."""
    tapes = [ClockedTape(base, rank=rank) for rank in (2, 0, 1)]
    tapes[0].writer.finish(TapeState.FINISHED)
    tapes[1].writer.finish(TapeState.FAILED)
    tapes[2].writer.close()
    assert [(row.rank, row.doing) for row in rows_of(tapes)] == [
        (0, Doing.FAILED),
        (1, Doing.DEAD),
        (2, Doing.ENDED),
    ]


def test_recorded_ends(base: Path) -> None:
    """What the agent has recorded says more: one exited with an error code, another cleanly without a record."""
    tapes = [ClockedTape(base, rank=rank) for rank in range(3)]
    for tape, code in zip(tapes, (3, 0, 0), strict=True):
        write_death(tape.writer.path, Death(1, status=code << 8))
    for tape in tapes[:2]:
        tape.writer.finish(TapeState.FINISHED)
    tapes[2].writer.close()
    assert [row.doing for row in rows_of(tapes)] == [Doing.FAILED, Doing.ENDED, Doing.ENDED]


def test_absent_rank(base: Path) -> None:
    """The rank that a verdict names shows what it is missing in, and for how long the others have waited."""
    tapes = [ClockedTape(base, rank=rank, world_size=2) for rank in (0, 1)]
    followers = [TapeFollower(tape.reader) for tape in tapes]
    for tape in tapes:
        tape.agree()
        tape.operation()
    tapes[0].enter()
    for tape in tapes:
        tape.pass_s(6.0)
    for tape, follower in zip(tapes, followers, strict=True):
        follower.observe(tape.reader.poll())
    [world] = worlds(followers, tapes[0].now_ns)
    judged = Judge(world, 5 * SECOND).verdict_on(world.ranks[0].open[0].operation_id)
    assert judged is not None
    rows = rows_of(tapes, locate(world, judged))
    assert [(row.doing, row.operation, row.age_s) for row in rows] == [
        (Doing.STALLED, "all_reduce #2", 6.0),
        (Doing.ABSENT, "not in all_reduce #2", 6.0),
    ]
    assert rows[1].place == "train.py:42 train"
