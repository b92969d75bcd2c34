"""Deaths as seen by passive readers: `watch` and the demo's screen report what the agent reports."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from otel_torchdist.cli.watch.passive import PassiveWatch
from otel_torchdist.job.runs.lives import write_death
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.lives import Death
from otel_torchdist.model.names import GroupName
from otel_torchdist.processes.endings import RecordedDeaths, SilentEnds
from otel_torchdist.stall.events import VerdictGiven
from otel_torchdist.verdict.rules import StallRules
from otel_torchdist.verdict.wording.sentence import sentence
from otel_torchdist.world.following.follower import CLOSING_NS, TapeFollower
from tests.support.tapes.fake_tape import SECOND, ClockedTape, FakeTape
from tests.support.waiting import until

KILLED = int(signal.SIGKILL)


@pytest.fixture
def follower(tmp_path: Path) -> tuple[ClockedTape, TapeFollower]:
    """A rank in an operation, whose lock has just been released, with a reader that follows its tape."""
    tape, deaths = ClockedTape(tmp_path), RecordedDeaths()
    deaths.follow(tape.reader.identity.nonce, tape.writer.path)
    found = TapeFollower(tape.reader, deaths)
    tape.enter()
    found.observe(tape.reader.poll())
    tape.writer.close()
    return tape, found


def test_record_of_the_agent_is_awaited(follower: tuple[ClockedTape, TapeFollower]) -> None:
    """A free lock is not a death until the agent has recorded one, and then it is that death."""
    tape, found = follower
    now_ns = time.monotonic_ns()
    for later_ns in (0, CLOSING_NS // 2):
        view = found.view(now_ns + later_ns)
        assert view is not None and view.alive
    write_death(tape.writer.path, Death(now_ns, status=KILLED))
    view = found.view(now_ns + CLOSING_NS // 2)
    assert view is not None and view.is_dead and view.death is not None
    assert (view.death.signal_name, view.death.at_ns) == ("SIGKILL", now_ns)


def test_job_without_an_agent(follower: tuple[ClockedTape, TapeFollower]) -> None:
    """Where no agent records how ranks end, the free lock shows a death, a second later."""
    _, found = follower
    now_ns = time.monotonic_ns()
    first, later = found.view(now_ns), found.view(now_ns + CLOSING_NS + 1)
    assert first is not None and first.alive
    assert later is not None and later.is_dead and later.death is None


def test_cause_that_is_known_later(tmp_path: Path) -> None:
    """The launcher has to reap a process before its exit code can be read: the file is reread until then."""
    tape = ClockedTape(tmp_path)
    nonce, deaths = tape.reader.identity.nonce, RecordedDeaths()
    deaths.follow(nonce, tape.writer.path)
    assert deaths.holds(nonce)
    for status in (None, 0):
        write_death(tape.writer.path, Death(1, status=status))
        assert deaths.death_of(nonce) == Death(1, status=status)
    assert not deaths.holds(nonce)
    assert SilentEnds(deaths).has_left(tape.reader)
    tape.enter()
    tape.reader.poll()
    assert not SilentEnds(deaths).has_left(tape.reader)
    tape.writer.close()


def test_watch_reports_what_the_agent_reports(tmp_path: Path) -> None:
    """One of four ranks is killed, and the launcher ends the others: which, how, and how long before."""
    ranks = [FakeTape(tmp_path, rank) for rank in range(4)]
    watch = PassiveWatch(tmp_path, StallRules(10 * SECOND))
    now_ns = time.monotonic_ns()
    for rank in ranks:
        rank.run(at=now_ns - SECOND, lasts=1_000_000)
        rank.begin(at=now_ns, sequence=2)
    watch.observe()
    for rank in ranks:
        rank.writer.beat()
        rank.writer.close()
    watch.observe()  # the locks are free, and the agent has not recorded it yet
    for number, rank in enumerate(ranks):
        later_ns, status = (0, KILLED) if number == 2 else (120_000_000 + number, int(signal.SIGTERM))
        write_death(rank.writer.path, Death(now_ns + later_ns, status=status))

    def given() -> list[VerdictGiven]:
        seen = watch.observe()
        return [event for event in seen.events if isinstance(event, VerdictGiven)] if seen is not None else []

    [event] = until(given)
    watch.close()
    assert sentence(event.verdict, 0.1).startswith("rank 2 was killed by SIGKILL 0.12 s before the others ended")


def test_peers_of_a_killed_rank_are_not_named(tmp_path: Path) -> None:
    """Where no agent records how ranks end: two ranks raise because the third, which records nothing, was killed."""
    ranks = [FakeTape(tmp_path, rank, world_size=3) for rank in range(3)]
    group = GroupName("0", "default_pg", (0, 1, 2), 0, "gloo", True)
    watch = PassiveWatch(tmp_path, StallRules(10 * SECOND))
    now_ns = time.monotonic_ns()
    numbers = [rank.begin(group=group, at=now_ns, sequence=2) for rank in ranks]
    for rank in ranks:
        rank.writer.beat()
    watch.observe()
    for rank, number in zip(ranks[:2], numbers, strict=False):
        error = rank.writer.names.intern("RuntimeError")
        rank.writer.complete(number, now_ns, time.monotonic_ns(), How.FAILED, error)
        rank.writer.finish(TapeState.FAILED, error)
    for rank in ranks:
        rank.writer.close()
    given: list[VerdictGiven] = []
    began = time.monotonic()
    while time.monotonic() < began + 2 * CLOSING_NS / 1e9:
        seen = watch.observe()
        given += [event for event in seen.events if isinstance(event, VerdictGiven)] if seen is not None else []
        time.sleep(0.02)
    watch.close()
    assert [event.verdict.ranks for event in given] == [(2,)]
