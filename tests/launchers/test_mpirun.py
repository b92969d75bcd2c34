"""Open MPI's `mpirun`: the verdict is in its output, and no process of ours keeps it from ending."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from deploy.native.ports import free_port
from tests.launchers.conftest import Start
from tests.launchers.started import (
    EXAMPLES,
    PYTHON,
    StartedJob,
    assert_failure_is_shown,
    assert_hang_is_shown,
    assert_job_goes_on,
    line_of,
    program,
)

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
TRAIN = EXAMPLES / "mpirun" / "train.py"
WORKER = Path(__file__).parent / "workers" / "file_store.py"
LATE = line_of(TRAIN, "time.sleep(late_s)")


def mpirun(start: Start, *command: str | Path) -> StartedJob:
    """Start two ranks."""
    options = ("--oversubscribe", "-np", "2", "--tag-output", "-x", "MASTER_PORT")
    as_root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    return start(program("mpirun"), *as_root, *options, *command, MASTER_PORT=str(free_port()))


def test_hang(start: Start) -> None:
    """The late rank is named in a line of the waiting rank; mpirun ends with its ranks, before the agent does."""
    job = mpirun(start, PYTHON, TRAIN, "--late-rank", "1", "--late-s", "20")
    assert_hang_is_shown(job, LATE)
    [line] = [line for line in job.output.splitlines() if "otel_torchdist: rank" in line]
    assert line.startswith("[1,0]<stderr>:")
    assert_job_goes_on(job)
    assert "[1,0]<stdout>:loss " in job.output
    assert job.agents, "it stays for a minute, without mpirun's pipes"


def test_failure(start: Start) -> None:
    """The rank that fails first is named, though mpirun ends the other one."""
    job = mpirun(start, PYTHON, TRAIN, "--failing-rank", "1")
    assert_failure_is_shown(job, line_of(TRAIN, "raise ValueError"), launcher_waits=False)
    assert "Exit code:    1" in job.output


def test_end_of_a_hanging_job(start: Start) -> None:
    """After SIGTERM to mpirun, as by Ctrl-C or a batch system, `diagnose` still names the rank that was late."""
    job = mpirun(start, PYTHON, TRAIN, "--late-rank", "1", "--late-s", "600")
    job.wait_for_notice()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() != 0
    assert len(job.notices) == 1, job.output
    diagnosed = job.diagnose()
    assert "verdict  rank 1 has not entered all_reduce (" in diagnosed, diagnosed
    assert LATE in diagnosed
    assert "the job was ended while it hung" in diagnosed


def test_rank_that_starts_late(start: Start) -> None:
    """The missing rank is named at the launch, and the launch is said to have completed when it has come after all."""
    script = f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then sleep 25; fi; exec {PYTHON} {TRAIN}'
    job = mpirun(start, "bash", "-c", script)
    assert job.wait_for_notice().startswith("rank 1 has not come to 127.0.0.1:"), job.output
    assert job.end() == 0, job.output
    assert len(job.notices) == 1, job.output
    [log] = job.base.glob("job-*/agent.log")
    said = log.read_text()
    assert re.search(r"stall over: init_process_group \(default_pg\) completed after ", said), said


def test_ranks_behind_a_script(start: Start, tmp_path: Path) -> None:
    """Ranks that meet in a file, each started by a shell of its own, are one job with one agent."""
    script = f"{PYTHON} {WORKER} {tmp_path / 'store'} 14; true"
    job = mpirun(start, "bash", "-c", script)
    notice = job.wait_for_notice()
    assert notice.startswith("rank 1 has not entered all_reduce (sequence 1, default_pg)")
    assert len(job.agents) == 1
    assert job.end() == 0
    assert len([*job.base.glob("job-*")]) == 1
