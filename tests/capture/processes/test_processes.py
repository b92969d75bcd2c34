"""Forked, spawned and killed processes: their tapes, and that they end as without recording."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import RunIdState, TapeState
from tests.support.launch.jobs import Jobs
from tests.support.launch.quiet import QUIET
from tests.support.launch.stderr import comparable
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.native.native_library import KERNELS, environ_of
from tests.support.repository import REPOSITORY
from tests.support.tapes.directories import memory_directory

ENDS = [
    ("returns", 0, TapeState.FINISHED, ""),
    ("raises", 1, TapeState.FAILED, "TrainingError"),
    pytest.param("exits", 3, TapeState.FINISHED, "", marks=pytest.mark.thorough),
    pytest.param("exits_at_once", 4, TapeState.RUNNING, "", marks=pytest.mark.thorough),
    ("is_killed", -9, TapeState.RUNNING, ""),
    pytest.param("is_terminated", -15, TapeState.RUNNING, "", marks=pytest.mark.thorough),
]


@NATIVE_LATER
@pytest.mark.parametrize(("way", "code", "state", "failure"), ENDS)
def test_end_with_an_operation_under_way(jobs: Jobs, way: str, code: int, state: TapeState, failure: str) -> None:
    """The exit code is as without recording. The tape has the end of the process and the open operation."""
    codes = [code, 0]
    plain = jobs.run("leaves", 2, way, "off", codes=codes)
    job = jobs.run("leaves", 2, way, "on", codes=codes)
    assert plain.tapes == []
    tape = job.tapes[0]
    assert (tape.status.state, tape.failure) == (state, failure)
    assert [one.has_ended for one in tape.named("barrier")] == [True, True]
    assert tape.only("all_reduce").how in ("open", "FAILED")  # rank 1 may be gone before rank 0
    assert tape.only("recv").how in ("open", "ABANDONED")
    assert comparable(job.ranks[0].err) == comparable(plain.ranks[0].err)


@pytest.mark.parametrize(("method", "ranks"), [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.thorough)])
def test_launched_ranks(jobs: Jobs, method: str, ranks: int) -> None:
    """Forked and spawned children are ranks like any others, and record how they ended."""
    job = jobs.run("launches", 1, method, str(ranks), "raises", environ=QUIET)
    assert job.ranks[0].lines()[-1] == {"ended": True}
    # From Python 3.13 on, multiprocessing has cleared the exception by the time it reports the end.
    end = (TapeState.FAILED, "TrainingError") if sys.version_info < (3, 13) else (TapeState.FINISHED, "")
    assert (job.tapes[-1].status.state, job.tapes[-1].failure) == end
    assert [(tape.identity.rank, len(tape.named("all_reduce"))) for tape in job.tapes] == [(n, 1) for n in range(ranks)]
    assert len({tape.status.run_id for tape in job.tapes}) == 1
    assert {tape.status.run_id_state for tape in job.tapes} == {RunIdState.AGREED}
    assert {tape.identity.parent for tape in job.tapes} == {0}  # the launcher is not a rank


@pytest.mark.thorough
def test_process_that_a_rank_starts(jobs: Jobs) -> None:
    """A process that creates its own group is marked as a helper of the rank that started it, in the same job."""
    job = jobs.run("starts_helper", environ=QUIET)
    rank, helper = sorted(job.tapes, key=lambda tape: tape.identity.monotonic_ns)
    assert (rank.identity.parent, helper.identity.parent) == (0, rank.identity.nonce)
    assert rank.status.run_id != helper.status.run_id


def test_forked_ranks_that_end_well(jobs: Jobs) -> None:
    """A forked rank ends by `os._exit`, yet its tape is finished and its spans are exported."""
    job = jobs.run("launches", 1, "fork", "2", "returns", environ={**QUIET, "OTEL_TRACES_EXPORTER": "console"})
    assert '{"ended": "well"}' in job.ranks[0].out.splitlines()
    assert [tape.status.state for tape in job.tapes] == [TapeState.FINISHED] * 2
    assert job.ranks[0].err == ""
    names = [line.strip() for line in job.ranks[0].out.splitlines() if line.startswith('    "name": ')]
    assert [names.count(f'"name": "{name}",') for name in ("init_process_group", "all_reduce", "barrier")] == [2, 2, 4]


def test_data_loader_workers(jobs: Jobs) -> None:
    """A loader's worker, or any forked child, has no thread of ours and writes nothing to its parent's tape."""
    job = jobs.run("loads_data")
    said = job.ranks[0].line()
    assert len(said["items"]) == 4
    for item in said["items"]:
        assert item["pid"] != said["pid"]
        assert (item["threads"], item["sum"]) == ([], 2.0)
    [tape] = job.tapes
    assert [operation.name for operation in tape.operations] == ["all_reduce", "all_reduce", "barrier"]
    assert (tape.steps, tape.lost) == ([], 0)
    assert tape.status.state is TapeState.FINISHED


WORKER = Path(__file__).parent / "workers" / "keeps_its_group.py"


def printed_at_exit(environ: dict[str, str]) -> str:
    """The output, at its end, of a rank that has imported Dynamo, and with it modules in which we replace parts."""
    with memory_directory() as base:
        own = {**os.environ, **QUIET, **environ, "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(base)}
        command = [sys.executable, str(WORKER), "torch._dynamo"]
        return subprocess.run(command, env=own, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def plain() -> str:
    """The same output without us."""
    return printed_at_exit({"OTEL_PYTHON_TORCHDIST_ENABLED": "false"})


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", KERNELS)
def test_groups_are_destroyed_as_without_us(plain: str, kernel: str) -> None:
    """Objects in torch's dispatcher that outlive the interpreter keep no group alive."""
    assert plain == "destroyed\n"
    assert printed_at_exit(environ_of(kernel)) == plain
