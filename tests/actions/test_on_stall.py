"""What the setting accepts, and what each action does."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist import semconv
from otel_torchdist.actions import abort, command, dump, stall_actions
from otel_torchdist.actions.stall_actions import StallActions, doable_here, suspended_among
from otel_torchdist.actions.stalled_run import StalledRun
from otel_torchdist.config import Action, ActionKind, parse_actions
from otel_torchdist.errors import TapeError
from otel_torchdist.stall.events import Incident, OngoingStall, Ruling
from otel_torchdist.tape.layout import RecordKind
from otel_torchdist.tape.reading.reader import TapeReader
from otel_torchdist.world.model import Channel, OperationId
from tests.support.fake_tape import RUN_ID, FakeTape
from tests.support.waiting import until

TEXT = "rank 2 has not entered all_reduce (sequence 7, default_pg) for 12.0 s"
NEVER = 3_600.0


def ongoing(tape: TapeReader, name: str = "first", is_ours: bool = True) -> OngoingStall:
    """A stall."""
    site = OperationId(Channel(RecordKind.OPERATION, "abcd1234"), 7)
    attributes = {semconv.VERDICT: "absent", semconv.VERDICT_RANKS: "2"}
    return OngoingStall(
        Ruling(Incident(RUN_ID, name), 1, site, TEXT, attributes), is_ours, frozenset({tape.identity.nonce})
    )


@pytest.fixture
def tape(tmp_path: Path) -> TapeReader:
    """The tape of a rank of this run."""
    (tmp_path / "job").mkdir()
    return FakeTape(tmp_path / "job").reader


@pytest.fixture
def stall(tape: TapeReader) -> StalledRun:
    """A stall, as actions receive it."""
    nonces = frozenset({tape.identity.nonce})
    trace_id = f"{ongoing(tape).ruling.incident.trace_id:032x}"
    found = {semconv.VERDICT: "absent", semconv.VERDICT_RANKS: "2"}
    return StalledRun(
        f"{RUN_ID:032x}", trace_id, "absent", "2", TEXT, found, tape.path.parent, nonces, (tape.identity.rank,)
    )


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about actions."""
    return [text for text in caplog.messages if text.startswith("on stall: ")]


# --- the setting ------------------------------------------------------------------------------------------------------


def test_list_of_actions() -> None:
    """Actions keep the order in which they are written, each once; a command takes the rest, commas included."""
    assert parse_actions(" dump , abort,dump, callback:alarm.bell:ring,command:/bin/page --to a,b ") == (
        Action(ActionKind.DUMP),
        Action(ActionKind.ABORT),
        Action(ActionKind.CALLBACK, "alarm.bell:ring"),
        Action(ActionKind.COMMAND, "/bin/page --to a,b"),
    )
    assert parse_actions("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "explode",
        "dump,explode",
        "command:",
        "command",
        "callback:ring",
        "callback:alarm:ring()",
        "dump:now",
        "dump,,abort",
    ],
)
def test_what_is_no_list_of_actions(text: str) -> None:
    """One bad word invalidates the whole setting: half of the requested actions may be worse than none."""
    with pytest.raises(ValueError):
        parse_actions(text)


def test_dump_and_abort_need_an_agent(caplog: pytest.LogCaptureFixture) -> None:
    """In a reader thread of a rank both are skipped, with one warning that names them and the setting."""
    assert doable_here(parse_actions("dump,callback:a:b,abort")) == [Action(ActionKind.CALLBACK, "a:b")]
    [warning] = caplog.messages
    assert warning.startswith("OTEL_PYTHON_TORCHDIST_ON_STALL=dump,abort needs an agent")
    assert doable_here(parse_actions("log")) == [Action(ActionKind.LOG)]
    assert len(caplog.messages) == 1


# --- when -------------------------------------------------------------------------------------------------------------


def test_once_for_each_stall_after_the_grace(tape: TapeReader, tmp_path: Path) -> None:
    """Nothing runs before the grace period; then once, however often the stall is checked; again for the next stall."""
    rung: list[StalledRun] = []
    actions = StallActions([], 0.3, tmp_path, rung.append)
    began = time.monotonic()
    while time.monotonic() - began < 0.2:
        actions.start_due([ongoing(tape)], [tape])
        time.sleep(0.01)
    assert rung == []
    until(lambda: actions.start_due([ongoing(tape)], [tape]) or rung)
    assert time.monotonic() - began >= 0.3
    for _ in range(20):
        actions.start_due([ongoing(tape)], [tape])
    actions.start_due([], [tape])
    until(lambda: actions.start_due([ongoing(tape, "second")], [tape]) or len(rung) > 1)
    assert [(stall.verdict, stall.ranks, stall.text) for stall in rung] == [("absent", "2", TEXT)] * 2
    assert len({stall.trace_id for stall in rung}) == 2


class Clock:
    """A clock that the test sets, in place of the module `time`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        """The time that the test has set."""
        return self.now_s


@pytest.mark.parametrize("agent_too", [True, False])
def test_suspension_within_the_grace(
    tape: TapeReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent_too: bool
) -> None:
    """Time in which the job was suspended is not grace, whether the agent was suspended too or kept watching."""
    clock = Clock()
    monkeypatch.setattr(stall_actions, "time", clock)
    rung: list[StalledRun] = []
    actions = StallActions([], 30.0, tmp_path, rung.append)

    def look_for(seconds: float, suspended: frozenset[int] = frozenset()) -> None:
        for _ in range(round(seconds * 4)):
            clock.now_s += 0.25
            actions.start_due([ongoing(tape)], [tape], suspended)

    look_for(5.0)
    if agent_too:
        clock.now_s += 3_600.0
    else:
        stall = dataclasses.replace(ongoing(tape), stands_still=True)
        look_for(3_600.0, suspended_among([stall, ongoing(tape, "other")]))
    look_for(23.0)
    time.sleep(0.1)
    assert rung == []
    look_for(3.0)
    until(lambda: rung)


def test_stall_that_ends_within_the_grace(tape: TapeReader, tmp_path: Path) -> None:
    """Nothing is done about such a stall, and the grace period of the next one starts over."""
    rung: list[StalledRun] = []
    actions = StallActions([], 0.2, tmp_path, rung.append)
    for _ in range(4):
        actions.start_due([ongoing(tape)], [tape])
        time.sleep(0.1)
        actions.start_due([], [tape])
    assert rung == []


def test_what_another_agent_judges(tape: TapeReader, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For a stall that another node's agent reported, this node only dumps its own evidence."""
    rung: list[StalledRun] = []
    actions = StallActions(parse_actions("dump,command:false"), 0.0, tmp_path / "dumps", rung.append)
    actions.start_due([ongoing(tape, is_ours=False)], [tape])
    until(lambda: reported(caplog))
    time.sleep(0.1)
    assert [text.split()[2] for text in reported(caplog)] == ["dump"]
    assert rung == []


def test_agent_that_was_started_again(tape: TapeReader, tmp_path: Path) -> None:
    """Actions that one agent has started for a stall are not repeated by the next agent."""
    marks = tmp_path / "marks"
    line = parse_actions(f'command:{sys.executable} -c \'open("{marks}", "a").write("x")\'')
    for _ in range(3):
        StallActions(line, 0.0, tmp_path).start_due([ongoing(tape)], [tape])
        until(marks.exists)
    time.sleep(0.2)
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


# --- command ----------------------------------------------------------------------------------------------------------


def test_command_learns_of_the_stall(stall: StalledRun, tmp_path: Path) -> None:
    """The command gets the verdict in its environment and as JSON on standard input; no shell parses its words."""
    script = tmp_path / "page.py"
    script.write_text(
        "import json, os, sys\n"
        "stall = json.load(sys.stdin)\n"
        "named = os.environ['TORCHDIST_STALL_VERDICT'], os.environ['TORCHDIST_STALL_RANKS']\n"
        "print(sys.argv[1], *named, stall['trace_id'])\n"
        "sys.exit(3)\n"
    )
    said = command.run_command(f"{sys.executable} {script} '$HOME; echo'", stall)
    assert said == f"exited with code 3: $HOME; echo absent 2 {stall.trace_id}"


def test_command_that_hangs(stall: StalledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that hangs is killed in time, with the processes that it started."""
    monkeypatch.setattr(command, "TIMEOUT_S", 0.3)
    began = time.monotonic()
    said = command.run_command("sh -c 'sleep 60 & sleep 60'", stall)
    assert said == "took longer than 0.3 s and was killed"
    assert time.monotonic() - began < 10


# --- dump -------------------------------------------------------------------------------------------------------------


def members(directory: Path) -> dict[str, bytes]:
    """Members of the only bundle in a directory, by name without the top folder."""
    [path] = directory.glob("*.tar.gz")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    with tarfile.open(path) as bundle:
        files = {entry.name.partition("/")[2]: bundle.extractfile(entry) for entry in bundle.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_bundle(stall: StalledRun, tape: TapeReader, tmp_path: Path) -> None:
    """A bundle holds the verdict and a readable tape, but not the secret of the run."""
    (stall.directory / "peers-00.json").write_text("secret")
    (stall.directory / "agent.log").write_text("a line\n")
    said = dump.dump(stall, tmp_path / "new" / "dumps", {})
    assert said.startswith(f"wrote {tmp_path}/new/dumps/torchdist-stall-")
    found = members(tmp_path / "new" / "dumps")
    assert json.loads(found["verdict.json"])["text"] == TEXT
    assert found["job/agent.log"] == b"a line\n"
    assert not any(b"secret" in content for content in found.values())
    copy = tmp_path / tape.path.name
    copy.write_bytes(found[f"job/{tape.path.name}"])
    assert TapeReader(copy).identity == tape.identity


def test_bundles_are_bounded(stall: StalledRun, tmp_path: Path) -> None:
    """The oldest bundles of this node are removed."""
    directory = tmp_path / "dumps"
    directory.mkdir(mode=0o700)
    for number in range(dump.MAX_BUNDLES + 5):
        (directory / f"torchdist-stall-1999{number:04}-{socket.gethostname()}.tar.gz").touch()
    (directory / "torchdist-stall-19980101-elsewhere.tar.gz").touch()
    dump.dump(stall, directory, {})
    elsewhere, *left = sorted(path.name for path in directory.iterdir())
    assert elsewhere == "torchdist-stall-19980101-elsewhere.tar.gz"
    assert len(left) == dump.MAX_BUNDLES
    assert left[0].startswith("torchdist-stall-19990006-")


def test_directory_that_others_may_write_to(stall: StalledRun, tmp_path: Path) -> None:
    """Such a directory is refused, and nothing is written."""
    directory = tmp_path / "dumps"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(TapeError, match="others may write to it"):
        dump.dump(stall, directory, {})
    assert list(directory.iterdir()) == []


def test_flight_recorder(stall: StalledRun, tmp_path: Path, recorder: Callable[[Path, Path], None]) -> None:
    """NCCL's own thread is asked through its pipe, and its file is awaited."""
    pipe, file = tmp_path / "pipe_0.pipe", tmp_path / "trace_0"
    file.write_text("old")
    os.utime(file, (1, 1))
    recorder(pipe, file)
    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"),
    }
    dump.dump(stall, tmp_path / "dumps", environ)
    assert members(tmp_path / "dumps")["flight-recorder/trace_0"] == b"new"


def test_recorder_that_does_not_listen(stall: StalledRun, tmp_path: Path) -> None:
    """A pipe that no one reads causes no delay; the existing file goes into the bundle."""
    os.mkfifo(tmp_path / "pipe_0.pipe")
    (tmp_path / "trace_0").write_text("old")
    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"),
    }
    began = time.monotonic()
    dump.dump(stall, tmp_path / "dumps", environ)
    assert time.monotonic() - began < dump.RECORDER_S
    assert members(tmp_path / "dumps")["flight-recorder/trace_0"] == b"old"


@pytest.fixture
def recorder() -> Callable[[Path, Path], None]:
    """Starts a stand-in for NCCL's watchdog: it waits for a byte in a pipe, then writes a file."""

    def start(pipe: Path, file: Path) -> None:
        os.mkfifo(pipe)
        reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

        def watch() -> None:
            until(lambda: os.read(reading, 16), 10)
            file.write_text("new")
            os.close(reading)

        threading.Thread(target=watch, daemon=True).start()

    return start


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


def test_dump_directory_of_another_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unusable dump directory is reported at startup, not when the stall comes; and nothing is created."""
    actions, good, bad = parse_actions("dump"), tmp_path / "good", tmp_path / "bad"
    StallActions(actions, 0.0, good)
    assert not good.exists()
    bad.mkdir()
    bad.chmod(0o777)
    StallActions([], 0.0, bad)
    assert not caplog.records
    StallActions(actions, 0.0, bad)
    [record] = caplog.records
    assert record.getMessage().startswith("OTEL_PYTHON_TORCHDIST_DUMP_DIR: `dump` cannot write evidence there: ")
    assert f"{bad}: refused" in record.getMessage()


# --- abort ------------------------------------------------------------------------------------------------------------

UNASKED_RANK = """
import dataclasses, sys, time
from pathlib import Path
from otel_torchdist.tape.identity import identify
from otel_torchdist.tape.writer import TapeWriter

identity = identify(int(sys.argv[2]), 0, 2, 64)
if sys.argv[3] == "elsewhere":
    identity = dataclasses.replace(identity, pid_namespace=identity.pid_namespace + 1)
tape = TapeWriter(Path(sys.argv[1]), identity)
print(identity.nonce, flush=True)
time.sleep(60)
"""


def test_abort_reports_ranks_that_it_could_not_end(stall: StalledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that does not respond is killed, except in another PID namespace: then no end is claimed."""
    monkeypatch.setattr(abort, "ANSWER_S", 0.2)
    command = [sys.executable, "-c", UNASKED_RANK, str(stall.directory)]
    ranks = [
        subprocess.Popen([*command, str(rank), place], stdout=subprocess.PIPE, text=True)
        for rank, place in enumerate(("here", "elsewhere"))
    ]
    try:
        nonces = frozenset(int(rank.stdout.readline()) for rank in ranks if rank.stdout is not None)
        text = abort.abort_ranks(dataclasses.replace(stall, nonces=nonces), lambda: True)
        assert ranks[0].wait(10) == -signal.SIGKILL
        assert ranks[1].poll() is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert text.startswith("ended 1 ranks, of which rank 0 had to be killed; rank 1 did not end and cannot be killed")
