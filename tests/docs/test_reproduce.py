"""The page about reproducers: its commands work as they stand there, and its example is what is written today."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cli.export.hung_jobs import HUNG_S, HungJob, hang
from tests.cli.reproduce.pairs import verdict_in
from tests.flight.made_dumps import late_rank, write
from tests.support.commands.asking import ask
from tests.support.commands.running import SCRIPT, environment, processes_of
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.pages import block_after, commands_of, page
from tests.support.tapes.memory import memory_directory

PAGE: Final = page("reproduce.md")
SIZE: Final = 3
LATE: Final = 2
RUN: Final = "c7da23a2"
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def job(warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HungJob]:
    """The job of the page: rank 2 leaves a broadcast out. It hung, and was killed."""
    with memory_directory() as base:
        yield hang(warm_python, base, tmp_path_factory.mktemp("hung"), [("skipped", SIZE)])["skipped"]


def test_commands(job: HungJob, tmp_path: Path) -> None:
    """Each command, one after the other in a shell: three write scripts, and the last script hangs as it should."""
    *commands, torchrun = commands_of(PAGE)
    assert [command.split()[1] for command in commands] == ["reproduce"] * 3
    write(tmp_path / "DUMPS", late_rank(SIZE, LATE))
    own = ask(job.base, "--json").document["run"]["id"][: len(RUN)]
    assert any(RUN in command for command in commands)
    environ = _environ(job.base) | {"OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(round(HUNG_S * 1000))}
    for command in commands:
        script = tmp_path / "hang.py"
        script.unlink(missing_ok=True)
        words = ["bash", "-c", command.replace(RUN, own)]
        done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "torchrun --nproc-per-node 3 hang.py" in script.read_text()
        compile(script.read_text(), "hang.py", "exec")
    _hangs(torchrun, tmp_path)


def _hangs(torchrun: str, folder: Path) -> None:
    """The script that was written last, for the dumps, hangs as these do."""
    with memory_directory() as tapes:
        process = subprocess.Popen(
            ["bash", "-c", torchrun],
            cwd=folder,
            env=_environ(tapes) | {"OTEL_PYTHON_TORCHDIST_ENABLED": "true", "GLOO_SOCKET_IFNAME": "lo", **QUIET},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            verdict_in(tapes, "absent", (LATE,))
        finally:
            for pid in processes_of(tapes):  # ranks do not end with torchrun if that is killed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(60)


def _environ(base: Path) -> dict[str, str]:
    return environment(base) | {"PATH": f"{SCRIPT.parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}


def test_example(job: HungJob) -> None:
    """The script of the page is the one that is written for that job, but for its run, times and places in the code."""
    answer = ask(job.base, command="reproduce", threshold_s=HUNG_S)
    assert answer.code == 0
    assert _without_particulars(answer.out) == _without_particulars(block_after(PAGE, "leaves a broadcast out:"))


def _without_particulars(script: str) -> str:
    """The script with its comments as one paragraph each, because lines are broken after so many characters."""
    script = re.sub(r"\n# (?=\S)", " ", script)
    line = r"\w+(?: at|,) \w+\.py:\d+"
    for pattern in (r"\(run .*?\)", line, r"(?<=sequence )\d+", r"(?<=number )\d+", r"[\d.]+ s(?=[;.])"):
        assert re.search(pattern, script), pattern
        script = re.sub(pattern, "…", script)
    return re.sub(r"otel-torchdist \S+, beside torch \S+", "…", script)
