"""The Slurm job around a process: which job directories are its own, and how a command reaches a node of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from otel_torchdist.node.job.description import JobDescription, describe_job
from otel_torchdist.node.job.description_file import job_in


def this_slurm_job(environ: Mapping[str, str] | None = None) -> str:
    """Return the id of the Slurm job in which this process runs; '' outside of Slurm.

    Args:
        environ: Its environment; None for the real one.
    """
    return describe_job(os.environ if environ is None else environ).slurm_job_id


def is_of_slurm_job(directory: Path, slurm_job: str) -> bool:
    """Return whether ranks of a Slurm job have written to a job directory; True for all if `slurm_job` is ''.

    A user's jobs share the base directory where they share a node.
    """
    if not slurm_job:
        return True
    job = job_in(directory)
    return job is not None and job.slurm_job_id == slurm_job


def first_of_slurm_job(directories: Iterable[Path], slurm_job: str) -> Path | None:
    """Return the first directory of a Slurm job; None if there is none, or `slurm_job` is ''."""
    return next((path for path in directories if slurm_job and is_of_slurm_job(path, slurm_job)), None)


def srun_on(host: str, job: JobDescription) -> list[str]:
    """Return the words before a command that runs it on a node of a Slurm job, beside the job's steps; [] elsewhere.

    Compute nodes mostly admit no other login. Slurm's name of a node is its host name without the domain.
    """
    if not job.slurm_job_id:
        return []
    return ["srun", f"--jobid={job.slurm_job_id}", "--overlap", f"--nodelist={host.partition('.')[0]}", "-N1", "-n1"]
