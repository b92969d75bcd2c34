"""`otel-torchdist diagnose` on jobs whose processes share a standalone process group."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from otel_torchdist.model.names import GroupName
from otel_torchdist.node.job.runs.runs import index_of
from otel_torchdist.node.job.worlds import WorldsFile
from tests.support.commands.asking import analyze, ask
from tests.support.tapes.fake_tape import PAIR, SECOND, TRAIN, FakeTape

TRAINER, ENGINE = 0x11AA << 112, 0x11BB << 112
WORLD = "transfer@29655/2"
SENTENCE = (
    "rank 1 of transfer has not entered broadcast (sequence 1, transfer) for 30.0 s; "
    "it was last in init_process_group; rank 0 waits for it at train, train.py:42; "
    "rank 1 waits for rank 0 in all_reduce (sequence 1, default_pg) at train, train.py:42"
)


def transfer(here: int) -> GroupName:
    """The group as one of its two members sees it."""
    return GroupName("transfer", "", (0, 1), 0, "gloo", True, world=WORLD, world_rank=here)


@pytest.fixture
def jobs(base: Path) -> Path:
    """A trainer of two ranks and its engine, which were killed while the trainer waited for the engine."""
    began_ns = time.monotonic_ns() - 60 * SECOND
    moment_ns = began_ns + 30 * SECOND
    directories = [base / f"job-000000000000000{letter}" for letter in "ab"]
    for directory in directories:
        directory.mkdir(mode=0o700)
    trainers = [FakeTape(directories[0], rank, 2, TRAINER, monotonic_ns=began_ns) for rank in (0, 1)]
    engine = FakeTape(directories[1], 1, 2, ENGINE, monotonic_ns=began_ns + 1, world=WORLD)
    trainers[0].begin("broadcast", transfer(0), at=moment_ns, call_site=TRAIN)
    trainers[1].begin("all_reduce", PAIR, at=moment_ns, call_site=TRAIN)
    engine.run("init_process_group", transfer(1), at=began_ns, lasts=SECOND, sequence=0)
    for tape in (trainers[0], engine):
        WorldsFile(tape.writer.path).add(WORLD)
    for tape in (*trainers, engine):
        tape.die()
    return base


def test_wait_through_two_jobs(jobs: Path) -> None:
    """Whichever of the jobs is asked for, both are shown under the larger one, and one sentence has both worlds."""
    answers = [ask(jobs, *arguments) for arguments in ((), ("11aa",), ("11bb",))]
    assert {answer.code for answer in answers} == {1}
    for answer in answers:
        head, *lines = answer.out.splitlines()
        assert head.startswith("run 11aa0000, ")
        assert head.endswith("2 of 2 ranks report, and 1 process of other runs in their groups")
        [verdict] = [line for line in lines if line.startswith("verdict")]
        assert verdict.split(" for ")[0] == f"verdict  {SENTENCE.split(' for ')[0]}"
        assert verdict.partition(". next: ")[0].endswith(SENTENCE.partition(" s; ")[2])
        assert any(line.startswith("rank 1 of transfer  ") for line in lines)


def test_document(jobs: Path) -> None:
    """In JSON the engine has the number after those of the ranks."""
    document = json.loads(ask(jobs, "--json").out)
    assert document["verdict"]["ranks"] == [2]
    assert document["coverage"] == {"reporting": [0, 1, 2], "unknown": []}


def test_jobs_that_meet(jobs: Path) -> None:
    """They are found by the worlds listed beside their tapes."""
    index = index_of(sorted(jobs.iterdir()))
    shared = [[other.label for other in index.runs_sharing_world(run)] for run in index.runs]
    assert shared == [
        ["11aa0000"],
        ["11bb0000"],
    ]
    index.close()


def test_worlds_that_are_listed(tmp_path: Path) -> None:
    """A file that holds something else lists none, and only the latest worlds are kept."""
    listed = WorldsFile(tmp_path / "0000000000000001.tape")
    for number in range(100):
        listed.add(f"update@{number}/2")
    written = json.loads((tmp_path / "0000000000000001.worlds").read_text())
    assert (len(written), written[-1]) == (32, "update@99/2")


@pytest.mark.parametrize("only", ["", "calls", "graph", "path"])
def test_other_members_are_no_ranks(jobs: Path, only: str) -> None:
    """No report says of a rank of the job what only the engine can have done or left undone."""
    out = analyze(jobs, "11aa", only=only).out
    assert "in transfer: rank" not in out
    assert "rank 1 never" not in out
