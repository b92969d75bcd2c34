"""`otel-torchdist diagnose --pid` on a live job of real ranks that was not recorded."""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.native.ports import free_port
from otel_torchdist.node.processes.state import call_of
from otel_torchdist.sources.evidence import live_recorder
from otel_torchdist.sources.evidence.live_ranks import LiveProcess
from otel_torchdist.sources.evidence.texts import py_spy
from tests.sources.flight.made_dumps import SECOND, START_NS, late_rank, write_json
from tests.support.commands.asking import ask
from tests.support.commands.running import Running, environment
from tests.support.waiting import until

WORKER = Path(__file__).parents[1] / "workers" / "plain_hang.py"
RECORDED = WORKER.with_name("recorded_rank.py")
LINES = WORKER.read_text().splitlines()
SLEEPING_LINE = next(n for n, line in enumerate(LINES, 1) if line.strip() == "time.sleep(600)")
CALLING_LINE = max(n for n, line in enumerate(LINES, 1) if "dist.all_reduce" in line)


@dataclass(frozen=True)
class Job:
    """A job of two ranks.

    Attributes:
        launcher: Process id of torchrun.
        ranks: Process ids of the ranks.
    """

    launcher: int
    ranks: tuple[int, int]


@pytest.fixture(scope="module")
def job(module_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Torchrun as a user starts it: the kernel shows the environment with which a process was executed."""
    folder = tmp_path_factory.mktemp("job")
    launched = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(WORKER), str(folder)],
        env={**environment(module_base), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: all((folder / rank).exists() for rank in "01"), 150)
        children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text().split()
        by_rank = {rank: int(pid) for pid in children if (rank := _rank_of(int(pid)))}
        # In the system calls in which they stay; Python before 3.11 sleeps in another one.
        stays = {"0": {"futex"}, "1": {"clock_nanosleep", "pselect6", "select"}}
        until(lambda: all(call_of(Path(f"/proc/{by_rank[rank]}")).name in names for rank, names in stays.items()))
        yield Job(launched.pid, (by_rank["0"], by_rank["1"]))
    finally:
        os.killpg(launched.pid, signal.SIGKILL)
        launched.wait()


def _rank_of(pid: int) -> str:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((entry[5:].decode() for entry in entries if entry.startswith(b"RANK=")), "")


def _ask_json(base: Path, *arguments: object) -> dict[str, Any]:
    answer = ask(base, "--json", *map(str, arguments))
    assert answer.code == 0, answer.err
    return json.loads(answer.out)


def test_launcher(job: Job, module_base: Path) -> None:
    """The launcher's pid leads to its ranks, with what the kernel shows of each."""
    document = _ask_json(module_base, "--pid", job.launcher)
    assert [(one["rank"], one["pid"]) for one in document["ranks"]] == [(0, job.ranks[0]), (1, job.ranks[1])]
    assert (document["world_size"], document["elsewhere"]) == (2, [])
    sleeping = document["ranks"][1]
    assert (sleeping["state"], sleeping["call"]) == ("S", "clock_nanosleep")
    assert sleeping["threads"] >= 2


@pytest.mark.skipif(py_spy.program() is None, reason="py-spy is not installed")
def test_stacks(job: Job, module_base: Path) -> None:
    """py-spy shows which rank is in no collective, and the lines at which both are."""
    document = _ask_json(module_base, "--pid", job.launcher)
    assert document["stacks"] == {"outside": [1], "inside": [0]}
    places = {tuple(one["ranks"]): (one["text"], one["call_site"]["line"]) for one in document["findings"]}
    assert places == {
        (0,): ("in all_reduce", CALLING_LINE),
        (1,): ("in no operation of torch.distributed", SLEEPING_LINE),
    }
    report = ask(module_base, "--pid", str(job.ranks[0]), "--pid", str(job.ranks[1])).out
    assert "rank 1 is in no operation of torch.distributed; rank 0 is" in report
    assert f"in load_data at plain_hang.py:{SLEEPING_LINE}" in report


def test_without_py_spy(job: Job, module_base: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without it, one line says so, and the rest is shown."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    answer = ask(module_base, "--pid", str(job.ranks[0]))
    assert "py-spy is not installed, so there are no stacks" in answer.err
    assert f"rank 0  pid {job.ranks[0]}  sleeping" in answer.out
    assert "rank 1  unknown: has no known process on this node" in answer.out


def test_nothing_there(base: Path) -> None:
    """A process that does not exist is reported, with the exit code for that."""
    answer = ask(base, "--pid", "4194304")
    assert (answer.code, answer.out) == (2, "")
    assert "process 4194304 does not exist" in answer.err


def test_process_of_another_user(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused in one line that names the user."""
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    answer = ask(base, "--pid", str(os.getpid()))
    assert answer.code == 2
    assert f"process {os.getpid()} belongs to user {owner}; run this as that user, or as root" in answer.err


def test_process_that_is_no_rank(base: Path) -> None:
    """A process without a rank is shown as such."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            document = _ask_json(base, "--pid", process.pid)
        finally:
            process.kill()
    assert [(one["rank"], one["pid"], one["command"]) for one in document["ranks"]] == [
        (None, process.pid, "sleep 600")
    ]


def test_interrupted(job: Job, base: Path, start: Callable[..., Running], tmp_path: Path) -> None:
    """Ctrl-C while py-spy hangs ends both; the job goes on."""
    slow = tmp_path / "py-spy"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    running = start("diagnose", "--pid", str(job.launcher), environ={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    pid = until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    running.signal_group(signal.SIGINT)
    assert running.end() == 130
    until(lambda: not Path(f"/proc/{pid}").exists())
    os.kill(job.ranks[0], 0)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """Starts a process that stands for rank 0 of two, with a flight recorder, and a server on a port unless 0."""
    started: list[subprocess.Popen[bytes]] = []
    made = late_rank(2, late=1, steps=1, begun_s=(time.time_ns() - START_NS) / SECOND - 32)
    dumps = [write_json(tmp_path, made, "given_") / f"given_{rank}.json" for rank in (0, 1)]

    def start(port: int) -> int:
        names = {
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": tmp_path / "pipe_",
            "TORCH_FR_DUMP_TEMP_FILE": tmp_path / "fr_rank_",
        }
        environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", **{name: str(path) for name, path in names.items()}}
        started.append(subprocess.Popen([sys.executable, str(RECORDED), str(port), *map(str, dumps)], env=environ))
        until((tmp_path / "pipe_0.pipe").exists)
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_dump_on_request(recorded: Callable[[int], int], base: Path, tmp_path: Path) -> None:
    """Ranks are asked for dumps only if the user says so; the dump is judged like others."""
    pid = recorded(0)
    assert ask(base, "--pid", str(pid)).code == 0
    assert not (tmp_path / "fr_rank_0").exists()
    answer = ask(base, "--pid", str(pid), "--request-dumps")
    assert (tmp_path / "fr_rank_0").exists()
    assert "dumps of the flight recorder, nccl 2.27.3, format 2.9, of 1 of 2 ranks" in answer.out
    # Its call was made 30 s before, and its file was written just now.
    assert re.search(r"in +all_reduce \(sequence 2, default_pg\) of ranks 0-1 for [34]\d\.\d s", answer.out), answer.out
    # Written after the process began: the next look reads it without asking.
    assert "rank 1 has no dump here" in ask(base, "--pid", str(pid)).out


def test_dump_from_before_the_first_look(tmp_path: Path) -> None:
    """A dump counts if it was written since the process began, also if no program has read that before."""
    dump = tmp_path / "fr_rank_0"
    with subprocess.Popen(["sleep", "600"]) as process:
        variables = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr_rank_")}
        rank = LiveProcess(process.pid, os.getpid(), "sleep 600", 0, variables=variables)
        dump.touch()
        time.sleep(0.1)
        found = live_recorder.dumps_of(rank)
        os.utime(dump, (0, 0))
        older = live_recorder.dumps_of(rank)
        process.kill()
    assert (found, older) == ([dump], [])


def test_debug_server(recorded: Callable[[int], int], base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of `torch.distributed.debug` in the job is asked; this node's rank has waited from its call to now."""
    debug = pytest.importorskip("torch.distributed.debug")
    usual = inspect.signature(debug.start_debug_server).parameters["port"].default
    port = free_port()
    assert usual == live_recorder.DEBUG_PORT
    monkeypatch.setattr(live_recorder, "DEBUG_PORT", port)
    answer = ask(base, "--pid", str(recorded(port)))
    assert answer.code == 1
    assert re.search(
        r"verdict  rank 1 has not entered all_reduce \(sequence 2, default_pg\) for at least [34]\d\.\d s", answer.out
    )


def test_rank_without_pipe(job: Job, base: Path) -> None:
    """A rank that cannot be asked for a dump is reported."""
    answer = ask(base, "--pid", str(job.ranks[0]), "--request-dumps")
    assert "rank 0: it has no pipe for requesting a dump (TORCH_NCCL_DEBUG_INFO_PIPE_FILE)" in answer.err
