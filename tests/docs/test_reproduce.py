"""The page about reproducers: its commands work as they stand there, and its example is what is written today."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cli.export.hung_jobs import HUNG_S, HungJob, hang
from tests.cli.reproduce.pairs import verdict_in
from tests.sources.flight.made_dumps import late_rank, write
from tests.support.commands.asking import ask, ask_as_on_page
from tests.support.commands.running import SCRIPT, environment, kill_processes_of
from tests.support.documented import block_after, commands_of, page
from tests.support.launch.quiet import QUIET
from tests.support.launch.warm_python import WarmPython
from tests.support.ranks.rank import SHOWS_REDUCE_OP
from tests.support.tapes.directories import memory_directory

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


def test_commands(job: HungJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the three commands that write a script does so, for the job or for dumps."""
    *commands, _ = commands_of(PAGE)
    assert [command.split()[1] for command in commands] == ["reproduce"] * 3
    assert any(RUN in command for command in commands)
    write(tmp_path / "DUMPS", late_rank(SIZE, LATE))
    own = ask(job.base, "--json").document["run"]["id"][: len(RUN)]
    monkeypatch.chdir(tmp_path)
    for command in commands:
        answer = ask_as_on_page(job.base, command.replace(RUN, own), threshold_s=HUNG_S)
        assert answer.code == 0, answer.err
        script = tmp_path / "hang.py"
        assert "torchrun --nproc-per-node 3 hang.py" in script.read_text()
        compile(script.read_text(), "hang.py", "exec")
        script.unlink()


@pytest.mark.thorough
def test_script_hangs(tmp_path: Path) -> None:
    """The last command runs the script for dumps with torchrun, in a shell; it hangs as the dumps' job did."""
    *_, torchrun = commands_of(PAGE)
    dumps = write(tmp_path / "DUMPS", late_rank(SIZE, LATE))
    (tmp_path / "hang.py").write_text(ask(tmp_path, dumps, command="reproduce").out)
    with memory_directory() as tapes:
        environ = {**environment(tapes), "PATH": f"{SCRIPT.parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1", **QUIET}
        process = subprocess.Popen(
            ["bash", "-c", torchrun],
            cwd=tmp_path,
            env=environ | {"GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            verdict_in(tapes, "absent", (LATE,))
        finally:
            kill_processes_of(tapes)  # ranks do not end with torchrun if that is killed
            process.wait(60)


@pytest.mark.skipif(not SHOWS_REDUCE_OP, reason="this torch does not show the reduce op, which the example has")
def test_example(job: HungJob) -> None:
    """The script of the page is the one that is written for that job, but for its run, times and places in the code."""
    answer = ask(job.base, command="reproduce", threshold_s=HUNG_S)
    assert answer.code == 0
    assert _without_particulars(answer.out) == _without_particulars(block_after(PAGE, "leaves a broadcast out:"))


def _without_particulars(script: str) -> str:
    """The script with its comments as one paragraph each, because lines are broken after so many characters."""
    script = re.sub(r"\n# (?=\S)", " ", script)
    line = r"\w+(?: at|,) \w+\.py:\d+"
    for pattern in (r"\(run .*?\)", line, r"(?<=sequence )\d+", r"[\d.]+ s(?=[;.])"):
        assert re.search(pattern, script), pattern
        script = re.sub(pattern, "…", script)
    return re.sub(r"otel-torchdist \S+, beside torch \S+", "…", script)
