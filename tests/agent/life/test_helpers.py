"""Processes that ranks start and that create their own groups, such as those of asynchronous checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.cli.mcp.roots import ReadableRoots
from otel_torchdist.cli.mcp.targets import RunTargets
from otel_torchdist.config import Config
from otel_torchdist.model.rank_state.lives import RankLife
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.node.processes.endings import REAPED_S, TOGETHER_S, SilentEnds
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.conftest import JOB
from tests.agent.own_agent import OwnAgent
from tests.support.commands.asking import ask
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import until

MAIN, HELPERS = f"{0xBEEF:032x}", f"{0xCAFE << 112:032x}"


@pytest.fixture
def tapes(base: Path) -> Iterator[Callable[[], list[TapeReader]]]:
    """Polls the existing tapes; those of ranks come before those of their helpers."""
    opened: list[TapeReader] = []

    def tapes() -> list[TapeReader]:
        found = [TapeReader(path) for path in tapes_in(base / JOB)]
        opened.extend(found)
        for tape in found:
            tape.poll()
        return sorted(found, key=lambda tape: bool(tape.identity.parent))

    yield tapes
    for tape in opened:
        tape.close()


def test_healthy_job(begin: Callable[..., Ranks], base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Helpers that are terminated with their ranks are not reported dead: not in metrics, the log or `diagnose`."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    ranks = begin(2)
    for rank in range(2):
        ranks.send(rank, "helper 0")
    with contextlib.closing(OwnAgent(base / JOB)) as own:
        own.turn_until(lambda: own.values("torchdist_up") == [1.0] * 4)
        assert "helper processes of ranks 0-1 of 2 in run cafe0000" in caplog.text
        ranks.meet(1)
        ranks.exit()
        for rank in range(2):  # in one line, or in two if a turn came between their ends
            ended = f"the helper process(es of ranks 0-1 have| of rank {rank} has) ended"
            own.turn_until(lambda ended=ended: re.search(ended, caplog.text))
        own.turn_until(lambda: own.values("torchdist_up") == [])
    assert "dead" not in caplog.text

    answer = ask(base, "--json")
    assert answer.code == 0
    assert answer.document["run"]["id"] == MAIN
    [helper] = answer.document["helpers"]
    assert (helper["run"]["id"], helper["helps"], helper["problem"]) == (HELPERS, MAIN, False)
    assert [rank["life"] for rank in helper["ranks"]] == ["finished"] * 2
    listed = ask(base, "--list", "--json").document["runs"]
    assert [(run["id"], run["helps"], run["state"]) for run in listed] == [
        (MAIN, None, "finished"),
        (HELPERS, MAIN, "finished"),
    ]
    assert "helper processes of ranks 0-1, run cafe0000: ranks 0-1 have finished" in ask(base).out
    config = Config.from_environment()
    with RunTargets(ReadableRoots([base], config), config).opened("", None) as target:
        assert target.run == MAIN  # what an assistant is told of "the newest run"


def test_helper_that_hangs(
    begin: Callable[..., Ranks], agent: Callable[..., Running], start: Callable[..., Running], base: Path
) -> None:
    """An operation that hangs among helpers is reported by the agent, `watch` and `diagnose`."""
    ranks = begin(2)
    for rank, sequence in enumerate((5, 0)):
        ranks.send(rank, f"helper {sequence}")
    stall = {"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": "1000", "OTEL_TRACES_EXPORTER": "none"}
    running = agent(**stall)
    watch = start("watch", "--plain", "--run-dir", base / JOB, **stall)
    watch.wait_for("run 00000000$")
    watch.wait_for("helper processes, run cafe0000: STALL: .*all_reduce")
    running.wait_for("stall.*all_reduce")
    answer = ask(base, "--json")
    assert (answer.code, answer.document["run"]["id"], answer.document["verdict"]) == (1, MAIN, None)
    assert answer.document["helpers"][0]["verdict"]["waiting"] == [0]
    shown = ask(base).out
    assert shown.index("rank 1") < shown.index("helper processes of ranks 0-1") < shown.index("diagnose cafe0000")
    ranks.exit()


def test_how_helpers_end(begin: Callable[..., Ranks], tapes: Callable[[], list[TapeReader]]) -> None:
    """A helper that is gone before its rank is dead, after a moment in which the rank might have followed."""
    now_s = [0.0]
    ranks = begin(1)
    ranks.send(0, "helper 0")
    lives = SilentEnds(clock=lambda: now_s[0])
    both = tapes()
    assert [lives.life_of(tape, both) for tape in both] == [RankLife.RUNNING] * 2
    ranks.send(0, "helper gone")
    assert lives.life_of(both[1], both) is RankLife.RUNNING
    now_s[0] += TOGETHER_S
    assert [lives.life_of(tape, both) for tape in both] == [RankLife.RUNNING, RankLife.DEAD]
    ranks.exit()
    assert [lives.life_of(tape, both) for tape in both] == [RankLife.FINISHED, RankLife.DEAD]


@pytest.mark.parametrize(("sequence", "life"), [(0, RankLife.FINISHED), (7, RankLife.DEAD)])
def test_helper_that_goes_with_its_rank(
    begin: Callable[..., Ranks],
    tapes: Callable[[], list[TapeReader]],
    base: Path,
    sequence: int,
    life: RankLife,
) -> None:
    """However the rank ended, an idle helper has ended with it, and one that was in an operation has died."""
    ranks = begin(1)
    ranks.send(0, f"helper {sequence}")
    both = tapes()
    assert [bool(tape.open_operations()) for tape in both] == [False, bool(sequence)]
    ranks.kill(0)
    until(lambda: not both[1].is_alive())
    moments_s = itertools.count(0.0, REAPED_S)
    lives = SilentEnds(clock=lambda: next(moments_s))
    assert [[lives.life_of(tape, both) for tape in both] for _ in range(2)][1] == [RankLife.DEAD, life]
    [helper] = ask(base, "--json").document["helpers"]
    assert helper["ranks"][0]["life"] == life.value
    assert (helper["problem"], ask(base).code) == (life is RankLife.DEAD, 1)
