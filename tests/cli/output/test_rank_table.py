"""Rows of ranks, at a terminal and on the live page, from real tapes."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from otel_torchdist.cli.output.rank_table import rank_table, rows_at_terminal, state_clauses
from otel_torchdist.judge.verdict.judging.judge import Judge
from otel_torchdist.judge.verdict.verdict import Verdict, VerdictKind, locate
from otel_torchdist.judge.world.assembly import worlds
from otel_torchdist.judge.world.following.follower import TapeFollower
from otel_torchdist.model.kinds import TapeState
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.node.job.runs.lives import write_death
from otel_torchdist.node.processes.endings import RecordedDeaths
from otel_torchdist.show.live.ranks import RankRow, RankState
from tests.support.tapes.fake_tape import SECOND, ClockedTape

THRESHOLD_S = 5.0


class Ranks:
    """Ranks that are followed; the time is that of the first one's tape."""

    def __init__(self, *tapes: ClockedTape, deaths: RecordedDeaths | None = None) -> None:
        self.tapes = tapes
        for tape in tapes:
            tape.agree()
            if deaths is not None:
                deaths.follow(tape.reader.identity.nonce, tape.reader.path)
        self._followers = [TapeFollower(tape.reader, deaths) for tape in tapes]

    def world(self) -> WorldSnapshot:
        """What they do now."""
        for tape, follower in zip(self.tapes, self._followers, strict=True):
            follower.observe(tape.reader.poll())
        [world] = worlds(self._followers, self.tapes[0].now_ns)
        return world

    def rows(self, verdict: Verdict | None = None) -> list[RankRow]:
        """Their rows."""
        return rows_at_terminal(self.world(), verdict, THRESHOLD_S)

    def states(self) -> list[tuple[int, str]]:
        """The state of each, in the order of the rows."""
        return [(row.rank, row.state) for row in self.rows()]


def test_waiting_by_age(base: Path) -> None:
    """By its age an open operation makes a rank running, waiting or stalled; its line comes from its call site."""
    tape = ClockedTape(base, rank=0)
    ranks = Ranks(tape)
    tape.end_step()
    tape.enter()
    seen: list[RankRow] = []
    for seconds in (0.5, 1.5, 4.0):
        tape.pass_s(seconds)
        seen += ranks.rows()
    assert [row.state for row in seen] == ["running", "waiting", "stalled"]
    last = seen[-1]
    assert (last.rank, last.step, last.operation, last.age_s) == (0, 1, "all_reduce #1", 6.0)
    assert (last.group, last.line) == ("DDP, default_pg", "train.py:42 train")
    assert [*state_clauses(seen[-1:])] == ["rank 0 stalled, all_reduce #1 (DDP, default_pg) for 6.0 s"]


def test_nothing_open(base: Path) -> None:
    """A rank without an open operation is running, in its current step."""
    tape = ClockedTape(base, rank=1)
    ranks = Ranks(tape)
    tape.operation()
    tape.end_step()
    tape.end_step()
    [row] = ranks.rows()
    assert (row.rank, row.state, row.step, row.operation, row.age_s) == (1, "running", 2, "", None)


def test_ends(base: Path) -> None:
    """Ranks that have ended, failed or died are distinguished, and rows are in the order of ranks."""
    tapes = [ClockedTape(base, rank=rank) for rank in (2, 0, 1)]
    ranks = Ranks(*tapes)
    tapes[0].writer.finish(TapeState.FINISHED)
    tapes[1].writer.finish(TapeState.FAILED)
    tapes[2].writer.close()
    assert ranks.states() == [(0, "failed"), (1, "dead"), (2, "finished")]


def test_recorded_ends(base: Path) -> None:
    """What the agent has recorded says more: one exited with an error code, another cleanly without a record."""
    tapes = [ClockedTape(base, rank=rank) for rank in range(3)]
    ranks = Ranks(*tapes, deaths=RecordedDeaths())
    for tape, code in zip(tapes, (3, 0, 0), strict=True):
        write_death(tape.writer.path, Death(1, status=code << 8))
    for tape in tapes[:2]:
        tape.writer.finish(TapeState.FINISHED)
    for tape in tapes:
        tape.writer.close()
    ranks.world()  # what has just ended may still have records to be read
    assert [state for _, state in ranks.states()] == ["failed", "finished", "finished"]


def test_absent_rank(base: Path) -> None:
    """The rank that a verdict names shows what it is missing in, and for how long the others have waited."""
    tapes = [ClockedTape(base, rank=rank, world_size=2) for rank in (0, 1)]
    ranks = Ranks(*tapes)
    for tape in tapes:
        tape.operation()
    tapes[0].enter()
    for tape in tapes:
        tape.pass_s(6.0)
    world = ranks.world()
    judged = Judge(world, 5 * SECOND).verdict_on(world.ranks[0].open[0].operation_id)
    assert judged is not None
    rows = ranks.rows(locate(world, judged))
    assert [(row.state, row.operation, row.age_s) for row in rows] == [
        ("stalled", "all_reduce #2", 6.0),
        ("absent", "not in all_reduce #2", 6.0),
    ]
    assert rows[1].line == "train.py:42 train"


def test_followers(base: Path) -> None:
    """Beside the rank that a verdict names, one that is dead as well has only followed."""
    tapes = [ClockedTape(base, rank=rank, world_size=3) for rank in range(3)]
    ranks = Ranks(*tapes)
    for tape in tapes:
        tape.operation()
    tapes[0].enter()
    for tape in tapes:
        tape.pass_s(6.0)
    ranks.world()
    tapes[1].writer.close()
    world = ranks.world()
    verdict = Judge(world, 5 * SECOND).verdict_on(world.ranks[0].open[0].operation_id)
    assert verdict is not None and (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (1,))
    tapes[2].writer.close()
    states = [RankState(row.state) for row in ranks.rows(verdict)]
    assert states == [RankState.STALLED, RankState.DEAD, RankState.FOLLOWED]


def test_line_of_code_has_room() -> None:
    """Where a rank waits on a narrow terminal, rates are left out before the line of code is; nothing is cut."""
    place = "train.py:56 Digits.__getitem__"
    rows = [_row(0, "stalled", 6.0, "train.py:173 train"), _row(1, "absent", 6.0, place)]
    for width, rates in ((130, ("steps/s", "coll/s")), (120, ("steps/s",)), (100, ()), (80, ())):
        text = _drawn(rows, width)
        assert [name for name in ("steps/s", "coll/s") if name in text] == [*rates], text
        assert "not in" in text and "…" not in text
        assert (place in text) == (width >= 100) and "Digits.__getitem__" in text


def test_columns_stay_while_all_run() -> None:
    """While no rank waits, the columns do not depend on the operations that are in flight."""
    for width, left_out in ((100, "\n"), (80, "coll/s ")):
        for row in (_row(0, "running", 0.1, "train.py:173 train"), _row(0, "running", None, "")):
            heading = " ".join(_drawn([row], width).split())
            assert heading.startswith("rank state step steps/s coll/s operation group age where ".replace(left_out, ""))


def _row(rank: int, state: str, age_s: float | None, line: str) -> RankRow:
    operation = "" if age_s is None else "not in all_reduce #109" if state == "absent" else "all_reduce #109"
    group = operation and "DDP bucket 0, default_pg"
    return RankRow(rank, "vm", state, False, operation, group, age_s, line, 103, None, None, None, None, None)


def _drawn(rows: list[RankRow], width: int) -> str:
    console = Console(width=width)
    with console.capture() as shown:
        console.print(rank_table(rows, {"steps/s": ["13.0"] * len(rows), "coll/s": ["27.1"] * len(rows)}, width))
    return shown.get()
