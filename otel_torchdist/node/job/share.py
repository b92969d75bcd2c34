"""Decides whether a job belongs to the recorded share of jobs, alike in all its ranks and on all its nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from otel_torchdist.node.job.directory import directory_of_torchrun

# The first variable that is set names the job. A scheduler's id is preferred: it survives restarts by a launcher.
_JOB_IDS: Final = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "FLUX_JOB_ID",
    "K8S_JOB_NAME",
    "RAY_JOB_ID",
    "TORCHELASTIC_RUN_ID",
    "PMIX_NAMESPACE",  # of one mpirun
)
_NO_ID: Final = "none"
"""torchrun's id for a run without an id."""
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def belongs_to_share(share: float, environ: Mapping[str, str]) -> bool:
    """Return whether a rank's job is recorded. A job without an id is recorded only with a share of 1.

    Args:
        share: From 0 to 1.
        environ: The environment of a rank.
    """
    if share >= 1:
        return True
    job = job_id(environ)
    return bool(job) and position(job) < share


def position(job: str) -> float:
    """Return a job's position among all jobs, from 0 up to 1: a hash of its id."""
    digest = hashlib.blake2b(job.encode(errors="surrogateescape"), digest_size=6, person=b"torchdist share").digest()
    return int.from_bytes(digest, "big") / (1 << 48)


def job_id(environ: Mapping[str, str]) -> str:
    """Return a text that all ranks of a job share, on all nodes, and that other jobs rarely have; '' if unknown."""
    for variable in _JOB_IDS:
        value = environ.get(variable, "").strip()
        if value and value != _NO_ID:
            return f"{variable}={value}"
    directory = directory_of_torchrun(environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if directory and environ.get("LOCAL_WORLD_SIZE") == environ.get("WORLD_SIZE"):
        return directory  # unique, but each node has its own; the address may be the node's default
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return f"{address}:{port}" if address and address not in _LOOPBACK else ""
