"""The names of a job in Ray, as Ray knows them in this process; its environment has only the job's id.

Nothing is imported: a worker of Ray has loaded the modules before it creates a process group. They are private, so any
name may be missing in another version of Ray.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

_TRAIN: Final = "ray.train.v2._internal.execution.context"
_WORKER: Final = "ray._private.worker"
_SUBMISSION: Final = "job_submission_id"
"""Key of the metadata of jobs that `ray job submit` starts."""


@dataclass(frozen=True, slots=True)
class RayNames:
    """The names of a job in Ray; '' if unknown.

    Attributes:
        submission_id: Id of the job of `ray job submit`.
        train_run: Name of the training in Ray Train, `RunConfig(name=…)`.
        train_run_id: Ray's id of that training. Workers that replace failed ones have it too.
    """

    submission_id: str = ""
    train_run: str = ""
    train_run_id: str = ""


def find_ray_names() -> RayNames:
    """Return the names that Ray has in this process. Never raises."""
    return RayNames(
        _text(lambda: sys.modules[_WORKER].global_worker.core_worker.get_job_config().metadata.get(_SUBMISSION)),
        _text(lambda: _train_run().run_config.name),
        _text(lambda: _train_run().run_id),
    )


def _train_run() -> Any:
    return sys.modules[_TRAIN].get_train_context().train_run_context


def _text(read: Callable[[], Any]) -> str:
    try:
        value = read()
    except Exception:  # no Ray, no worker of Ray, or another version of Ray
        return ""
    return value if isinstance(value, str) else ""
