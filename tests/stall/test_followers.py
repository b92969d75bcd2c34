"""A rank that only ended after another one is not shown like the one that was first."""

from __future__ import annotations

from pathlib import Path

from otel_torchdist.cli.output.rank_table import Doing, rank_rows
from otel_torchdist.model.verdict_kinds import VerdictKind
from otel_torchdist.stall.reporting.spans import incident_spans
from otel_torchdist.verdict.judging.judge import Judge
from otel_torchdist.world.assembly import worlds
from otel_torchdist.world.following.follower import TapeFollower
from tests.support.tapes.fake_tape import ClockedTape
from tests.support.worlds.fake_world import SECOND
from tests.support.worlds.watched_world import Watching
from tests.verdict.test_first_death import KILL, busy, end_others


def test_bars_of_a_stall() -> None:
    """In the trace of a stall, the first bar says `dead`, and those of the ranks that the launcher ended `followed`."""
    world, _ = busy(5.9)
    watching = Watching(world).until(6.0)
    world.ranks[2].is_seen_to_die(6.02, KILL)
    end_others(world, 6.14)
    watching.until(9.0)
    ((_, given),) = watching.verdicts
    _, *bars = incident_spans(given)
    assert [bar.name for bar in bars] == ["rank 2: dead", "rank 0: followed", "rank 1: followed", "rank 3: followed"]


def test_rows_at_the_terminal(tmp_path: Path) -> None:
    """Beside the rank that a verdict names, one that is dead as well has only followed."""
    tapes = [ClockedTape(tmp_path, rank=rank, world_size=3) for rank in range(3)]
    followers = [TapeFollower(tape.reader) for tape in tapes]
    for tape in tapes:
        tape.agree()
        tape.operation()
    tapes[0].enter()
    for tape, follower in zip(tapes, followers, strict=True):
        tape.pass_s(6.0)
        follower.observe(tape.reader.poll())
    tapes[1].writer.close()
    [world] = worlds(followers, tapes[0].now_ns)
    verdict = Judge(world, 5 * SECOND).verdict_on(world.ranks[0].open[0].operation_id)
    assert verdict is not None and (verdict.kind, verdict.ranks) == (VerdictKind.DEAD, (1,))
    tapes[2].writer.close()
    rows = rank_rows([tape.reader for tape in tapes], verdict, 5.0, tapes[0].now_ns)
    assert [row.doing for row in rows] == [Doing.STALLED, Doing.DEAD, Doing.FOLLOWED]
