"""What a process finds out about its Slurm job."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_torchdist.node.job.description import JobDescription, RankDescription, write_description
from otel_torchdist.node.job.slurm import first_of_slurm_job, is_of_slurm_job, srun_on, this_slurm_job


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """Directories of Slurm's jobs 1 and 2, and one without a description."""
    folders = [tmp_path / name for name in ("job-1", "job-2", "job-none")]
    for folder, number in zip(folders, ("1", "2", ""), strict=True):
        folder.mkdir()
        if number:
            write_description(folder / "a.tape", RankDescription(JobDescription(slurm_job_id=number)))
    return folders


def test_directories_of_a_job(directories: list[Path]) -> None:
    """Directories are told apart by the job that ranks have described; outside of Slurm all are accepted."""
    assert [is_of_slurm_job(folder, "2") for folder in directories] == [False, True, False]
    assert [is_of_slurm_job(folder, "") for folder in directories] == [True, True, True]
    assert first_of_slurm_job(directories, "2") == directories[1]
    assert first_of_slurm_job(directories, "3") is None
    assert first_of_slurm_job(directories, "") is None


def test_this_job() -> None:
    """The job's id is taken from either variable that Slurm sets."""
    assert this_slurm_job({"SLURM_JOB_ID": "7"}) == "7"
    assert this_slurm_job({"SLURM_JOBID": "7"}) == "7"
    assert this_slurm_job({}) == ""


def test_command_on_a_node() -> None:
    """A command reaches the node by Slurm's name of it; outside of Slurm nothing is put before it."""
    job = JobDescription(slurm_job_id="4711")
    assert srun_on("n1.cluster.example", job) == [*("srun", "--jobid=4711", "--overlap", "--nodelist=n1", "-N1", "-n1")]
    assert srun_on("n1", JobDescription()) == []
