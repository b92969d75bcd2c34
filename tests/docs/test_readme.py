"""README's first screen, with a real job that hangs: its commands, and the output that it shows."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from otel_torchdist.sources.evidence.texts import py_spy
from tests.sources.evidence.reading import DATA
from tests.sources.flight.made_dumps import late_rank, write_json
from tests.support.commands.asking import ask, ask_as_on_page
from tests.support.commands.running import environment
from tests.support.documented import block_after, commands_elsewhere, commands_of
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

README: Final = (REPOSITORY / "README.md").read_text()
WORKER: Final = Path(__file__).parent / "workers" / "train.py"
COMMANDS: Final = [
    "python3 -m venv /tmp/look && . /tmp/look/bin/activate && pip install -q '.[cli]' py-spy",
    "otel-torchdist diagnose --pid 23648",
    "otel-torchdist diagnose job.log dumps/",
    "make install",
    "OTEL_PYTHON_TORCHDIST_ENABLED=true torchrun --nproc-per-node 8 train.py",
]
DOORS: Final = ["It hangs now, and was not recorded", "It hangs now, and is recorded", "Be ready next time"]
LONGEST: Final = 180


@contextmanager
def hanging_job(base: Path, folder: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run the job of the page; its output is in `job.log`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(WORKER)]
    with (folder / "job.log").open("a") as log:
        job = subprocess.Popen(
            command, env={**environment(base), **environ}, stdout=log, stderr=log, text=True, start_new_session=True
        )
        try:
            yield job
        finally:
            job.terminate()  # not killed: torchrun ends its ranks, which have sessions of their own
            job.wait(60)


def test_it_begins_with_three_doors() -> None:
    """It is short, and what to do about a job that hangs now comes before everything else."""
    assert len(README.splitlines()) <= LONGEST
    assert re.findall(r"^## (.*)$", README, re.MULTILINE)[:3] == DOORS
    assert re.findall(r"^- \[(.*?)\]\(#", README, re.MULTILINE)[:3] == DOORS


def test_all_commands_are_known() -> None:
    """The first two doors run below; `make install` has tests of its own."""
    assert commands_of(README) == COMMANDS
    assert commands_elsewhere(README) == []


@pytest.mark.process
@pytest.mark.skipif(py_spy.program() is None, reason="py-spy is not installed")
def test_a_job_that_was_not_recorded(memory: Path, tmp_path: Path) -> None:
    """The second command says what the page shows."""
    block = block_after(README, "For a job with four ranks, the output is:")
    shown = re.sub(r"of process \d+", "of process N", block).splitlines()
    answers: list[str] = []

    def is_as_shown() -> bool:
        answer = ask_as_on_page(memory, COMMANDS[1].replace("23648", str(job.pid)))
        answers.append(answer.out or answer.err)
        return re.sub(r"of process \d+", "of process N", answer.out).splitlines()[: len(shown)] == shown

    with hanging_job(memory, tmp_path) as job:
        until(is_as_shown, 120, lambda: answers[-1])


def test_leftovers(memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log and dumps go into one report, which names the rank that is to blame."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "gloo_raise.log", tmp_path / "job.log")
    write_json(tmp_path / "dumps", late_rank(2, late=1))
    answer = ask(memory, *shlex.split(COMMANDS[2])[2:])
    assert answer.code == 1
    assert re.search(r"rank 1 has not entered all_reduce", answer.out)


@pytest.mark.process
@pytest.mark.thorough
def test_a_job_that_is_recorded(memory: Path, tmp_path: Path) -> None:
    """The job's standard error has the two lines of the page, apart from ages and ids."""
    block = block_after(README, "the job prints the verdict to its standard error, in two lines:")
    sentence, details = (_without_numbers(line) for line in block.splitlines())
    log = tmp_path / "job.log"
    # With the usual threshold: on a loaded machine, ranks start seconds apart.
    with hanging_job(memory, tmp_path, OTEL_PYTHON_TORCHDIST_ENABLED="true"):
        until(lambda: "details: " in log.read_text(), 120)
    lines = [_without_numbers(line) for line in log.read_text().splitlines() if line.startswith("otel_torchdist: ")]
    assert lines[:2] == [sentence, details]


def _without_numbers(line: str) -> str:
    line = re.sub(r"for [\d.]+ s;", "for N s;", line)
    line = re.sub(r"in rank [013] in 29 min \d+ s", "in rank N in 29 min", line)
    return re.sub(r"diagnose [0-9a-f]{8} --run-dir \S+", "diagnose RUN --run-dir FOLDER", line)
