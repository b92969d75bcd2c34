"""Ends of processes: as recorded, and as torchelastic's error file has them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.cli.watch.passive import PassiveWatch
from otel_torchdist.judge.stall.events import VerdictGiven
from otel_torchdist.judge.verdict.rules import StallRules
from otel_torchdist.judge.verdict.wording.ends import describe_death
from otel_torchdist.judge.verdict.wording.sentence import sentence
from otel_torchdist.judge.world.following.follower import CLOSING_NS, TapeFollower
from otel_torchdist.model.kinds import How, TapeState
from otel_torchdist.model.names import GroupName
from otel_torchdist.model.rank_state.lives import Death
from otel_torchdist.node.job.runs.lives import MAX_ERROR, death_path, read_death, write_death
from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.node.processes.endings import RecordedDeaths, SilentEnds, error_file_of, error_in
from otel_torchdist.tape.reading.reader import TapeReader
from tests.node.processes.test_death_watch import DyingRanks
from tests.support.tapes.fake_tape import SECOND, ClockedTape, FakeTape
from tests.support.waiting import until

# ----------------------------------------------------------------------------------------------------------------------
# torchelastic's error file: the exception that ended a rank is reported; other content there is not trusted.


EXITED_3 = 3 << 8
SECRET = "hunter2"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[DyingRanks]:
    """A directory for their tapes."""
    ranks = DyingRanks(tmp_path)
    yield ranks
    ranks.close()


def written(path: Path, message: str) -> None:
    """Write it as `@record` of torch.distributed.elastic does."""
    extra = {"py_callstack": "Traceback (most recent call last):\n ...", "timestamp": "1"}
    path.write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))


@pytest.mark.parametrize("code", [3, 0])
def test_rank_that_has_left_its_error(ranks: DyingRanks, tmp_path: Path, code: int) -> None:
    """The death and its file show type and first line; for a rank that exited with code 0 nothing is read."""
    file = tmp_path / "error.json"
    written(file, "ValueError: loss is nan\nat step 7")
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(file), "PASSWORD": SECRET}
    process = ranks.start(env=environ)
    tape, watch = TapeReader(ranks.tapes[0]), DeathWatch()
    try:
        watch.follow(tape.path, tape.identity, tape.owner)
        assert process.stdin is not None
        process.stdin.write(f"exit {code}\n")
        process.stdin.flush()
        until(lambda: (found := read_death(tape.path)) is not None and (found.error or found.status == 0))
        death = watch.death_of(tape.identity.nonce)
    finally:
        watch.stop()
        tape.close()
    assert death is not None
    assert (death.exit_code, death.error) == (code, "ValueError: loss is nan" if code else "")
    assert read_death(ranks.tapes[0]) == death
    assert describe_death(death) == (
        "ended with exit code 3 (ValueError: loss is nan)" if code else "exited with code 0"
    )
    assert SECRET not in death_path(ranks.tapes[0]).read_text()


def test_path_of_a_living_process(tmp_path: Path) -> None:
    """Only this variable, only an absolute path, and only of an existing process."""
    file = tmp_path / "error.json"
    for value, expected in ((str(file), file), ("error.json", None), ("", None)):
        environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": value}
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environ) as process:
            until(lambda pid=process.pid, path=expected: error_file_of(pid) == path)  # it may still be starting
    assert error_file_of(process.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_process_of_another_user(tmp_path: Path) -> None:
    """The environment of another user's process is not read, though root could."""
    environ = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=environ, user=65534) as process:
        assert error_file_of(process.pid) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"message": 1}',
        b'{"message": {}}',
        b"[" * 5000,
        b"\xff\xfe",
        b'"' + b"x" * (2 << 20) + b'"',
    ],
    ids=["empty", "list", "nothing", "number", "no message", "deep", "bytes", "long"],
)
def test_file_that_is_something_else(tmp_path: Path, content: bytes) -> None:
    """Such a file yields no exception."""
    file = tmp_path / "error.json"
    file.write_bytes(content)
    assert error_in(file) == ""


def test_file_that_leads_astray(tmp_path: Path) -> None:
    """No link is followed, no pipe blocks the reader, and no other user's file is read."""
    file, link, pipe = tmp_path / "error.json", tmp_path / "link", tmp_path / "pipe"
    written(file, "ValueError: loss is nan")
    link.symlink_to(file)
    os.mkfifo(pipe)
    assert [error_in(path) for path in (link, pipe, tmp_path / "none", tmp_path)] == [""] * 4
    assert error_in(file) == "ValueError: loss is nan"
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
        assert error_in(file) == ""


def test_text_is_short_and_shown_safely(tmp_path: Path) -> None:
    """One line without control characters, from the file and from what another user may have written about a death."""
    file = tmp_path / "error.json"
    written(file, "ValueError: \x1b[31mred" + "x" * 1000)
    assert error_in(file).startswith(r"ValueError: \x1b[31mred")
    assert len(error_in(file)) <= MAX_ERROR
    tape = tmp_path / "1234.tape"
    write_death(tape, Death(1, status=EXITED_3, error="\x1b[31mred\n"))
    death = read_death(tape)
    assert death is not None and death.error == r"\x1b[31mred\n"
    death_path(tape).write_text(json.dumps({"nonce": "1234", **dataclasses.asdict(death), "error": 7}))
    assert read_death(tape) is None


# --- Deaths as seen by passive readers: `watch` and the demo's screen report what the agent reports -------------------


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
    assert deaths.awaits_end(nonce)
    for status in (None, 0):
        write_death(tape.writer.path, Death(1, status=status))
        assert deaths.death_of(nonce) == Death(1, status=status)
    assert not deaths.awaits_end(nonce)
    assert SilentEnds(deaths).exited_silently(tape.reader)
    tape.enter()
    tape.reader.poll()
    assert not SilentEnds(deaths).exited_silently(tape.reader)
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
