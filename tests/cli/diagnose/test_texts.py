"""`otel-torchdist diagnose PATH…` with logs and stacks of other tools, alone and beside dumps of flight recorders."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from tests.sources.evidence import quoted
from tests.sources.evidence.reading import DATA
from tests.sources.flight.made_dumps import late_rank, write_json
from tests.support.commands.asking import ask
from tests.support.launch.torchrun import Torchrun
from tests.support.launch.warm_python import WarmPython

WORKER = Path(__file__).parents[1] / "workers" / "plain_failure.py"
RAISING_LINE = next(n for n, line in enumerate(WORKER.read_text().splitlines(), 1) if "raise ValueError" in line)
ABSENT = [line for rank in range(7) for line in quoted.timed_out(rank, 59_958)]


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Dumps of two ranks, of which rank 1 has not entered the second `all_reduce`."""
    return write_json(tmp_path / "dumps", late_rank(2, late=1, steps=1), "fr_rank_")


def _stacks(folder: Path, rank: int, line: int) -> None:
    head = (
        f'Process 1{rank}: python train.py\nPython v3.11.7 (/usr/bin/python)\n\nThread 1{rank} (idle): "MainThread"\n'
    )
    (folder / f"py-spy_rank{rank}.txt").write_text(f"{head}    load_data (/home/user/train.py:{line})\n")


def test_logs_alone(base: Path, tmp_path: Path) -> None:
    """The watchdogs' lines of a job suffice for a verdict; the report shows where each finding is written."""
    log = tmp_path / "job.log"
    log.write_text("\n".join([*ABSENT, quoted.asked_for_dump(7, 59_957, by=3)]))
    answer = ask(base, log)
    assert (answer.code, answer.err) == (1, "")
    assert answer.has(r"verdict  rank 7 has not entered all_reduce \(sequence 59958, default_pg\) for 30 min 0 s; .*")
    assert answer.has(r"ranks 0-6 +all_reduce #59958 timed out after 1800 s, called in _all_reduce at .*job\.log:1\]")
    texts = ask(base, "--json", log).document["sections"]["texts"]
    assert (texts["verdict"]["kind"], texts["verdict"]["ranks"]) == ("absent", [7])


def test_folder_of_texts(base: Path, tmp_path: Path) -> None:
    """A folder may hold anything: compressed logs, stacks, foreign files, and links to nowhere."""
    (tmp_path / "node0.log.gz").write_bytes(gzip.compress((DATA / "gloo_kill.log").read_bytes()))
    (tmp_path / "notes.txt").write_text("buy milk\n")
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b\x08 no")
    os.symlink("nowhere", tmp_path / "link")
    answer = ask(base, tmp_path)
    assert answer.code == 1
    assert answer.has(r"rank 2 +ended with SIGKILL, the first failure that the launcher saw .*node0\.log\.gz:68\]")
    assert "1 other file that no reader recognizes, such as" in answer.err
    assert "Traceback" not in answer.err


def test_stacks_beside_dumps(base: Path, dumps: Path) -> None:
    """The dumps name the rank, and a stack adds where in its code it is."""
    without = ask(base, dumps).out
    assert "rank 1 has not entered all_reduce" in without
    assert "load_data" not in without
    _stacks(dumps, 1, 42)
    answer = ask(base, dumps)
    assert answer.has(r"verdict  rank 1 has not entered all_reduce .*; it is in load_data at train\.py:42.*")


def test_texts_that_contradict_dumps(base: Path, dumps: Path) -> None:
    """If the watchdogs' lines name another rank than the dumps do, that is said, and neither is dropped."""
    lines = [*quoted.timed_out(1, 9), quoted.asked_for_dump(0, 8, by=1)]
    (dumps / "job.log").write_text("\n".join(lines))
    answer = ask(base, dumps)
    assert "the watchdogs' lines name rank 0, the dumps rank 1: they may be of different jobs or moments" in answer.err
    assert "rank 1 has not entered" in answer.out
    assert "rank 0 has not entered" in answer.out


def test_log_of_a_job_of_now(base: Path, warm_python: WarmPython, tmp_path: Path) -> None:
    """A real job on the torch that is installed: torchrun's output names the rank that raised, and its line."""
    job = Torchrun(
        warm_python,
        tmp_path / "job",
        ["--standalone", "--nproc-per-node=2", "--log-dir", tmp_path / "logs", WORKER],
        {"OTEL_PYTHON_TORCHDIST_ENABLED": "false"},
    )
    assert job.wait() == 1
    (tmp_path / "job.log").write_text(job.log)
    findings = ask(base, "--json", tmp_path / "job.log", tmp_path / "logs").document["sections"]["texts"]["findings"]
    first = findings[0]
    assert (first["ranks"], first["first"]) == ([1], True)
    assert first["text"] == "ended with exit code 1, after ValueError: loss is nan"
    [raised] = [one for one in findings if one["text"] == "ValueError: loss is nan"]
    assert (raised["ranks"], raised["call_site"]["line"]) == ([1], RAISING_LINE)
