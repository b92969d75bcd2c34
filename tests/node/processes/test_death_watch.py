"""How the ends of processes are seen: real ranks, a watcher in a process of its own, real signals, a real OOM kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist.model.rank_state.lives import BY_CGROUP, Death
from otel_torchdist.node.job.runs.lives import death_path, read_death
from otel_torchdist.node.processes.death_watch import DeathWatch
from otel_torchdist.node.processes.state import name_of, survives_sigterm
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.waiting import until

HERE = Path(__file__).parent
KERNEL = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
SHOWS_STATUS = KERNEL >= (6, 15)
"""Whether a pidfd gives the wait status of a process that has been reaped."""


class DyingRanks:
    """Ranks without torch, and processes that watch them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self.tapes: list[Path] = []

    def start(self, *prefix: str, **others: Any) -> subprocess.Popen[str]:
        """Start a rank, by way of a command."""
        script = HERE / "dying_rank.py"
        process = self._run([*prefix, sys.executable, str(script), str(self._folder), str(len(self.tapes))], **others)
        assert process.stdout is not None
        tape = process.stdout.readline().strip()
        assert tape, "the rank has not started"  # tests change the owner of the tape's directory
        self.tapes.append(Path(tape))
        return process

    def watch(self, *options: str) -> tuple[subprocess.Popen[str], list[bool]]:
        """Watch all of them in another process; returns it, and which of them it holds by a pidfd."""
        process = self._run([sys.executable, str(HERE / "death_watcher.py"), *options, *map(str, self.tapes)])
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def _run(self, command: list[str], **others: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **others)
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End what is left."""
        for process in self._processes:
            process.kill()
            process.wait(60)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[DyingRanks]:
    """A directory for their tapes."""
    ranks = DyingRanks(tmp_path)
    yield ranks
    ranks.close()


def seen_by(watcher: subprocess.Popen[str]) -> list[Death]:
    """The deaths that a watcher has seen; all its descriptors are closed."""
    assert watcher.stdout is not None
    said = json.loads(watcher.stdout.readline())
    assert said["files"][1] < said["files"][0]
    return [Death(**death) for death in said["deaths"]]


def await_end(process: subprocess.Popen[str]) -> None:
    """Wait until a process has ended, without reaping it."""
    until(lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text())


def order_of(deaths: list[Death]) -> list[int]:
    """Indexes in the order in which they died."""
    return sorted(range(len(deaths)), key=lambda place: deaths[place].at_ns)


def test_order_causes_and_times(ranks: DyingRanks) -> None:
    """Signals and an exit code, each a moment after the other; what was seen is stored beside the tapes too."""
    processes = [ranks.start() for _ in range(4)]
    watcher, held = ranks.watch()
    assert held == [True] * 4
    killed_ns: dict[int, int] = {}
    for place, deed in ((2, signal.SIGKILL), (0, signal.SIGTERM), (3, "exit 3"), (1, signal.SIGABRT)):
        killed_ns[place] = time.monotonic_ns()
        if isinstance(deed, str):
            stdin = processes[place].stdin
            assert stdin is not None
            stdin.write(f"{deed}\n")
            stdin.flush()
        else:
            processes[place].send_signal(deed)
        await_end(processes[place])
    deaths = seen_by(watcher)
    assert order_of(deaths) == [2, 0, 3, 1]
    assert [death.signal_name for death in deaths] == ["SIGTERM", "SIGABRT", "SIGKILL", ""]
    assert [death.exit_code for death in deaths] == [None, None, None, 3]
    assert all(death.is_exact and death.oom == "" for death in deaths)
    assert all(0 < death.at_ns - killed_ns[place] < 1_000_000_000 for place, death in enumerate(deaths))
    assert [read_death(tape) for tape in ranks.tapes] == deaths


def spin(seconds: float) -> None:
    """Use a core for so long, as a launcher that waits for one would."""
    due = time.monotonic() + seconds
    while time.monotonic() < due:
        pass


@pytest.mark.parametrize(
    ("first", "works_s", "sleeps_s", "is_same"),
    [
        (0, 0.02, 0.0, True),
        pytest.param(2, 0.3, 0.0, False, marks=pytest.mark.thorough),
        (0, 0.0, 0.3, False),
    ],
)
def test_launcher_ends_the_others_too(
    ranks: DyingRanks, first: int, works_s: float, sleeps_s: float, is_same: bool
) -> None:
    """In one go, though that may take it a while after the lowest rank; or because it has polled, after one ended."""
    processes = [ranks.start() for _ in range(4)]
    watcher, _ = ranks.watch()
    processes[first].terminate()
    while not death_path(ranks.tapes[first]).exists():
        if sleeps_s:
            time.sleep(0.01)
    spin(works_s)
    time.sleep(sleeps_s)
    for process in processes:
        process.terminate()
    deaths = seen_by(watcher)
    assert deaths[order_of(deaths)[0]].with_others is is_same
    assert [read_death(tape) for tape in ranks.tapes] == deaths


def test_process_group_is_ended(ranks: DyingRanks) -> None:
    """All ranks are signalled by one system call, as by Ctrl-C: the first to end was not alone, whichever it is."""
    processes = [ranks.start() for _ in range(4)]
    group = processes[0].pid
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"join {group}\n")
        process.stdin.flush()
        until(lambda pid=process.pid: os.getpgid(pid) == group)
    watcher, _ = ranks.watch()
    os.killpg(group, signal.SIGTERM)
    deaths = seen_by(watcher)
    assert [death.signal for death in deaths] == [signal.SIGTERM] * 4
    assert deaths[order_of(deaths)[0]].with_others
    assert [read_death(tape) for tape in ranks.tapes] == deaths


@pytest.mark.parametrize("reaped", [False, True])
def test_watcher_that_did_not_run_meanwhile(ranks: DyingRanks, reaped: bool) -> None:
    """The watcher was stopped while they died: the kernel kept order and causes, also of those already reaped."""
    processes = [ranks.start() for _ in range(3)]
    watcher, _ = ranks.watch()
    watcher.send_signal(signal.SIGSTOP)
    until(lambda: ") T " in Path(f"/proc/{watcher.pid}/stat").read_text())
    for place, number in ((1, signal.SIGKILL), (2, signal.SIGTERM), (0, signal.SIGUSR1)):
        processes[place].send_signal(number)
        await_end(processes[place])
        if reaped:
            processes[place].wait(60)
    watcher.send_signal(signal.SIGCONT)
    deaths = seen_by(watcher)
    assert order_of(deaths) == [1, 2, 0]
    assert all(death.is_exact for death in deaths)
    if not reaped or SHOWS_STATUS:
        assert [death.signal_name for death in deaths] == ["SIGUSR1", "SIGKILL", "SIGTERM"]


@pytest.mark.parametrize("shown", [True, False])
def test_cause_that_the_kernel_shows_late(ranks: DyingRanks, shown: bool) -> None:
    """A death is published together with its cause; without one it is published after a while."""
    asked: list[int] = []

    def status_of(file: int) -> int | None:
        asked.append(file)
        return int(signal.SIGKILL) if shown and len(asked) > 3 else None

    soon_ns = 1_000_000_000  # enough for four calls on busy cores
    # As in the moment in which a parent that has waited for a child releases it.
    watch = DeathWatch(lambda pid, ticks: None, status_of, soon_ns)
    process = ranks.start()
    tape = TapeReader(ranks.tapes[0])
    nonce = tape.identity.nonce
    try:
        watch.follow(tape.path, tape.identity, tape.owner)
        process.kill()
        until(lambda: asked)
        while (death := watch.death_of(nonce)) is None:
            assert watch.awaits_end(nonce) or watch.death_of(nonce) is not None
            time.sleep(0)  # releases the GIL, which the watcher's thread needs
        published_ns = time.monotonic_ns()
    finally:
        watch.stop()
        tape.close()
    assert death.signal_name == ("SIGKILL" if shown else "")
    assert len(asked) > 3
    if not shown:
        assert published_ns - death.at_ns >= soon_ns


@pytest.mark.parametrize("command", ["", "handle", "ignore"])
def test_whether_sigterm_would_have_ended_it(ranks: DyingRanks, command: str) -> None:
    """A rank that handles or ignores SIGTERM may have got it before SIGKILL, also if it does so only since a moment."""
    process = ranks.start()
    watcher, _ = ranks.watch()
    if command:
        assert process.stdin is not None
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
        until(lambda: survives_sigterm(process.pid))
    process.kill()
    (death,) = seen_by(watcher)
    assert death.signal_name == "SIGKILL"
    assert death.survives_sigterm is bool(command)
    assert death.launcher == name_of(os.getpid()) != ""
    assert read_death(ranks.tapes[0]) == death


def test_status_that_never_comes(ranks: DyingRanks) -> None:
    """Before Linux 6.15 there is none once the parent has waited for its child: the death is published at once."""
    process = ranks.start()
    tape, watch = TapeReader(ranks.tapes[0]), DeathWatch(lambda pid, ticks: None, lambda file: None, 1 << 62)
    try:
        watch.follow(tape.path, tape.identity, tape.owner)
        process.kill()
        process.wait(60)
        until(lambda: watch.death_of(tape.identity.nonce) is not None)
    finally:
        watch.stop()
        tape.close()


def test_ranks_in_other_pid_namespaces(ranks: DyingRanks) -> None:
    """Their pids mean nothing here: the locks on the tapes show when they died, which is not an exact order."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("PID namespaces need root and util-linux's `unshare`")
    processes = [ranks.start("unshare", "--pid", "--fork", "--kill-child") for _ in range(2)]
    watcher, held = ranks.watch()
    assert held == [False, False]
    for place in (1, 0):
        time.sleep(0.2)
        processes[place].kill()
        until(lambda place=place: death_path(ranks.tapes[place]).exists())
    deaths = seen_by(watcher)
    assert order_of(deaths) == [1, 0]
    assert [death.is_exact for death in deaths] == [False, False]
    assert deaths[0].at_ns - deaths[1].at_ns > deaths[0].resolution_ns


def test_tape_of_another_user(ranks: DyingRanks) -> None:
    """For a tape that names another user's process, an agent run as root reports only what the lock shows."""
    if os.geteuid() != 0:
        pytest.skip("giving a file away needs root")
    process = ranks.start()
    for path in (ranks.tapes[0], ranks.tapes[0].parent):  # a tape belongs to the owner of its directory
        os.chown(path, 12345, 12345)
    watcher, held = ranks.watch()
    assert held == [False]
    process.kill()
    (death,) = seen_by(watcher)
    assert (death.status, death.is_exact) == (None, False)


def test_no_file_left(ranks: DyingRanks) -> None:
    """A watcher out of descriptors continues, and opens the ranks' pidfds as soon as there are some."""
    process = ranks.start()
    watcher, held = ranks.watch("--starved")
    assert held == [False]
    assert watcher.stdin is not None and watcher.stdout is not None
    watcher.stdin.write("\n")
    watcher.stdin.flush()
    assert watcher.stdout.readline() == "now\n"
    process.kill()
    (death,) = seen_by(watcher)
    assert (death.signal_name, death.is_exact) == ("SIGKILL", True)


def test_watcher_that_comes_later(ranks: DyingRanks) -> None:
    """A death that one agent has seen is known to the next, with the same time."""
    process = ranks.start()
    watcher, _ = ranks.watch()
    process.kill()
    before = seen_by(watcher)
    process.wait(60)
    later, held = ranks.watch()
    assert held == [False]
    assert seen_by_later(later) == before


def seen_by_later(watcher: subprocess.Popen[str]) -> list[Death]:
    """The deaths that a watcher without open descriptors has seen."""
    assert watcher.stdout is not None
    return [Death(**death) for death in json.loads(watcher.stdout.readline())["deaths"]]


@contextlib.contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """A cgroup with a memory limit, in either version of the hierarchy; skips where none can be created."""
    version_1, version_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, file = (version_1, "memory.limit_in_bytes") if version_1.is_dir() else (version_2, "memory.max")
    group = parent / f"otel-torchdist-{os.getpid()}"
    try:
        group.mkdir()
        (group / file).write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {error}")
    try:
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def joins(group: Path) -> Callable[[], None]:
    """A function that makes a process join a cgroup before its exec."""

    def join() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    return join


def test_memory_runs_out(ranks: DyingRanks) -> None:
    """The kernel kills the rank that eats memory; its cgroup has counted that, and the other rank's has not."""
    with memory_cgroup(96 << 20) as group:
        hungry = ranks.start(preexec_fn=joins(group))
        other = ranks.start()
        watcher, _ = ranks.watch()
        assert hungry.stdin is not None
        hungry.stdin.write("eat\n")
        hungry.stdin.flush()
        until(lambda: death_path(ranks.tapes[0]).exists())
        other.kill()
        deaths = seen_by(watcher)
        hungry.wait(60)
    assert [death.signal_name for death in deaths] == ["SIGKILL", "SIGKILL"]
    assert deaths[0].oom == BY_CGROUP
    assert deaths[1].oom != BY_CGROUP
