"""Writes a description of the rank beside its tape: the job and the GPU, which readers cannot determine."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from otel_torchdist.capture.core.recorder import Recorder
from otel_torchdist.node.job.ancestry import find_standard_error
from otel_torchdist.node.job.description import (
    JobDescription,
    RankDescription,
    describe_job,
    shortened,
    write_description,
)

_logger = logging.getLogger("otel_torchdist")


class SelfDescription:
    """Writer of the description of this process, beside each of its tapes."""

    def __init__(self, describes_launch: bool, cuda_device: Callable[[], int | None]) -> None:
        """Initialize without a tape.

        Args:
            describes_launch: Include the command line and the git commit.
            cuda_device: Returns the CUDA device of the first operation, or None before it.
        """
        self._describes_launch = describes_launch
        self._cuda_device = cuda_device
        self._tape: Path | None = None
        self._written = RankDescription()
        self._knows_gpu = False

    def begin(self, recorder: Recorder) -> None:
        """Describe this process beside a new tape."""
        self._tape, self._knows_gpu = recorder.tape.path, False
        job = own_job(self._describes_launch)
        self._write(RankDescription(job, stderr=find_standard_error(os.environ)))

    def beat(self) -> None:
        """Add the GPU after the first operation on it, when CUDA is initialized. Called once a second."""
        device = None if self._knows_gpu else self._cuda_device()
        if device is None or self._tape is None:
            return
        self._knows_gpu = True
        uuid = gpu_uuid(device)
        if uuid:
            self._write(replace(self._written, gpu=uuid))

    def _write(self, description: RankDescription) -> None:
        self._written = description
        if self._tape is not None:
            with contextlib.suppress(OSError):  # no space, or the directory is gone: the agent warns once
                write_description(self._tape, description)


def own_job(describes_launch: bool) -> JobDescription:
    """Describe this process's job by its environment and Ray, and optionally by its command line and commit."""
    job = _with_ray(describe_job(os.environ))
    if not describes_launch:
        return job
    from otel_torchdist.node.job.description import git_commit, without_secrets

    main = getattr(sys.modules.get("__main__"), "__file__", None)
    start = Path(main).resolve().parent if main else Path.cwd()
    return replace(job, git_commit=git_commit(start), command=without_secrets(_command_line()))


def _with_ray(job: JobDescription) -> JobDescription:
    if not job.ray_job_id:
        return job
    from otel_torchdist.node.job.ray_names import find_ray_names

    names = find_ray_names()
    return replace(
        job,
        ray_submission_id=shortened(names.submission_id),
        ray_train_run=shortened(names.train_run),
        ray_train_run_id=shortened(names.train_run_id),
    )


def _command_line() -> list[str]:
    """Return the command line with the interpreter's options. After a fork, `orig_argv` may be another program's."""
    script, *arguments = sys.argv or [""]
    full = sys.orig_argv
    is_ours = full[len(full) - len(arguments) :] == arguments and (script in full or "-m" in full or "-c" in full)
    return full if is_ours else [sys.executable, script, *arguments]


def gpu_uuid(device: int) -> str:
    """Return the UUID of a CUDA device in NVML's format; '' if torch does not expose it."""
    try:
        cuda: Any = torch.cuda
        uuid = str(cuda.get_device_properties(device).uuid)
    except (AttributeError, AssertionError, RuntimeError) as error:
        _logger.debug("the UUID of device %d is not known: %s", device, error)
        return ""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
