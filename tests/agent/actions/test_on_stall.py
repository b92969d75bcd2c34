"""When actions run: after the grace period, once for each stall, whatever becomes of the others."""

from __future__ import annotations

import dataclasses
import logging
import sys
import threading
from pathlib import Path

import pytest

from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.agent.actions.triggers import StallActions, suspended_among
from otel_torchdist.config import parse_actions
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.actions.ongoing import TEXT, ongoing, reported
from tests.support.tapes.fake_tape import FakeTape
from tests.support.waiting import until


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """The time that the test has set."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The clock of the actions."""
    return Clock()


def settle() -> None:
    """Wait until all actions that have been started are done."""
    until(lambda: "torchdist-on-stall" not in {thread.name for thread in threading.enumerate()})


def test_once_for_each_stall_after_the_grace(tape: TapeReader, tmp_path: Path, clock: Clock) -> None:
    """Nothing runs before the grace period; then once, however often the stall is checked; again for the next stall."""
    rung: list[StalledRun] = []
    actions = StallActions([], 0.3, tmp_path, rung.append, clock=clock)

    def check_for(seconds: float, name: str) -> None:
        for _ in range(round(seconds * 100)):
            actions.start_due([ongoing(tape, name)], [tape])
            clock.now_s += 0.01

    check_for(0.3, "first")
    settle()
    assert rung == []
    check_for(0.3, "first")
    until(lambda: rung)
    check_for(0.2, "first")
    actions.start_due([], [tape])
    check_for(0.4, "second")
    until(lambda: len(rung) > 1)
    assert [(stall.verdict, stall.ranks, stall.text) for stall in rung] == [("absent", "2", TEXT)] * 2
    assert len({stall.trace_id for stall in rung}) == 2


@pytest.mark.parametrize("agent_too", [True, False])
def test_suspension_within_the_grace(tape: TapeReader, tmp_path: Path, clock: Clock, agent_too: bool) -> None:
    """Time in which the job was suspended is not grace, whether the agent was suspended too or kept watching."""
    rung: list[StalledRun] = []
    actions = StallActions([], 30.0, tmp_path, rung.append, clock=clock)

    def check_for(seconds: float, suspended: frozenset[int] = frozenset()) -> None:
        for _ in range(round(seconds * 4)):
            clock.now_s += 0.25
            actions.start_due([ongoing(tape)], [tape], suspended)

    check_for(5.0)
    if agent_too:
        clock.now_s += 3_600.0
    else:
        stall = dataclasses.replace(ongoing(tape), stands_still=True)
        check_for(3_600.0, suspended_among([stall, ongoing(tape, "other")]))
    check_for(23.0)
    settle()
    assert rung == []
    check_for(3.0)
    until(lambda: rung)


def test_stall_that_ends_within_the_grace(tape: TapeReader, tmp_path: Path, clock: Clock) -> None:
    """Nothing is done about such a stall, and the grace period of the next one starts over."""
    rung: list[StalledRun] = []
    actions = StallActions([], 0.2, tmp_path, rung.append, clock=clock)
    for _ in range(4):
        actions.start_due([ongoing(tape)], [tape])
        clock.now_s += 0.15
        actions.start_due([ongoing(tape)], [tape])
        actions.start_due([], [tape])
    settle()
    assert rung == []


def test_what_another_agent_judges(tape: TapeReader, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For a stall that another node's agent reported, this node only dumps its own evidence."""
    rung: list[StalledRun] = []
    actions = StallActions(parse_actions("dump,command:false"), 0.0, tmp_path / "dumps", rung.append)
    actions.start_due([ongoing(tape, is_ours=False)], [tape])
    settle()
    assert [text.split()[2] for text in reported(caplog)] == ["dump"]
    assert rung == []


def test_agent_that_was_started_again(tape: TapeReader, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Actions that one agent has started for a stall are not repeated by the next agent."""
    marks = tmp_path / "marks"
    line = parse_actions(f'command:{sys.executable} -c \'open("{marks}", "a").write("x")\'')
    for _ in range(3):
        StallActions(line, 0.0, tmp_path).start_due([ongoing(tape)], [tape])
        until(marks.exists)
    settle()
    assert marks.read_text() == "x"


def test_one_that_fails_keeps_none_of_the_others(
    tape: TapeReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A callback that raises, a missing module and a missing program are logged, and the next action runs."""

    def explode(stall: StalledRun) -> None:
        raise ZeroDivisionError("no luck")

    line = parse_actions("callback:nowhere.at_all:ring,dump,command:/no/such/program --loud")
    StallActions(line, 0.0, tmp_path / "dumps", explode).start_due([ongoing(tape)], [tape])
    until(lambda: len(reported(caplog)) == 4)
    first, second, third, fourth = reported(caplog)
    assert first == "on stall: the callback failed: ZeroDivisionError: no luck"
    assert second.startswith("on stall: callback failed: ModuleNotFoundError: No module named 'nowhere'")
    assert third.startswith("on stall: dump wrote ")
    assert fourth.startswith("on stall: command failed: FileNotFoundError")


def test_log_alone_does_nothing_more(tape: TapeReader, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`log` adds nothing to what always happens: no thread, no file."""
    caplog.set_level(logging.DEBUG)
    StallActions(parse_actions("log"), 0.0, tmp_path / "dumps").start_due([ongoing(tape)], [tape])
    assert reported(caplog) == []
    assert not (tmp_path / "dumps").exists()


def test_stall_that_ends_while_something_is_done(
    tape: TapeReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the ranks resume during a slow callback, they are no longer killed."""
    is_over = threading.Event()
    actions = StallActions(parse_actions("abort"), 0.0, tmp_path, lambda stall: is_over.wait(10))
    actions.start_due([ongoing(tape)], [tape])
    actions.start_due([], [tape])
    is_over.set()
    until(lambda: len(reported(caplog)) == 2)
    assert reported(caplog)[1] == "on stall: abort skipped: the stall is over"
    assert list(tape.path.parent.glob("*.abort")) == []


def test_ranks_of_several_jobs(tape: TapeReader, tmp_path: Path) -> None:
    """Ranks that do not know their run yet may belong to different jobs: no action is taken on them."""
    (tmp_path / "other").mkdir()
    other = FakeTape(tmp_path / "other", 1).reader
    both = dataclasses.replace(ongoing(tape), nonces=frozenset({tape.identity.nonce, other.identity.nonce}))
    rung: list[StalledRun] = []
    actions = StallActions([], 0.0, tmp_path, rung.append)
    actions.start_due([both], [tape, other])
    actions.start_due([ongoing(tape, "second")], [tape, other])
    until(lambda: rung)
    assert [stall.directory for stall in rung] == [tape.path.parent]
