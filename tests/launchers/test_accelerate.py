"""`accelerate launch`, through torchrun and through mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.native.ports import free_port
from tests.launchers.conftest import Start
from tests.launchers.started import (
    EXAMPLES,
    assert_failure_is_shown,
    assert_hang_is_shown,
    assert_job_goes_on,
    line_of,
    needs,
    program,
)

pytestmark = [pytest.mark.thorough, pytest.mark.rare]
TRAIN = EXAMPLES / "accelerate" / "train.py"
LATE = line_of(TRAIN, "time.sleep(late_s)")


def options() -> tuple[str, ...]:
    """Options of two processes on one machine."""
    return ("--num_processes", "2", "--num_machines", "1", "--main_process_port", str(free_port()))


def test_hang(start: Start) -> None:
    """The late rank is named in the output of `accelerate launch`, which then ends with 0."""
    needs("accelerate")
    job = start(program("accelerate"), "launch", "--multi_gpu", *options(), TRAIN, "--late-rank", "1", "--late-s", "20")
    assert_hang_is_shown(job, LATE)
    assert_job_goes_on(job)
    assert "on 2 ranks" in job.output


def test_failure(start: Start) -> None:
    """The rank that fails first is named before `accelerate launch` ends with an error."""
    needs("accelerate")
    job = start(program("accelerate"), "launch", "--multi_gpu", *options(), TRAIN, "--failing-rank", "1")
    assert_failure_is_shown(job, line_of(TRAIN, "raise ValueError"))


def test_hang_under_mpirun(start: Start, tmp_path: Path) -> None:
    """The same with `--cpu` and a file of hosts, for which Accelerate calls mpirun."""
    needs("accelerate")
    program("mpirun")
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\n")
    job = start(
        *(program("accelerate"), "launch", "--cpu", "--mpirun_hostfile", hosts, *options(), TRAIN),
        *("--late-rank", "1", "--late-s", "20"),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    assert_hang_is_shown(job, LATE)
    assert_job_goes_on(job)


def test_cpu_alone_is_one_process(start: Start) -> None:
    """`--cpu --num_processes 2` without a file of hosts starts one process, with or without us: nothing is recorded."""
    needs("accelerate")
    job = start(program("accelerate"), "launch", "--cpu", *options(), TRAIN)
    assert job.end() == 0, job.output
    assert "on 1 ranks" in job.output
    assert not [*job.base.glob("job-*/*.tape")]
