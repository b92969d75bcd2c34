"""The names of a job in Ray, in processes that are no workers of Ray Train."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from otel_torchdist.node.job.directory import job_key
from otel_torchdist.node.job.ray_names import RayNames, find_ray_names


def test_without_ray() -> None:
    """A process without Ray has no names in it, and does not import it."""
    program = "import sys; from otel_torchdist.node.job.ray_names import *; assert find_ray_names() == RayNames()"
    subprocess.run([sys.executable, "-c", f"{program}; assert 'ray' not in sys.modules"], check=True)


def test_other_version_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules without the attributes that we read, or with values of other types, give no names."""
    for name in ("ray._private.worker", "ray.train.v2._internal.execution.context"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert find_ray_names() == RayNames()
    sys.modules["ray.train.v2._internal.execution.context"].get_train_context = lambda: 1 / 0  # type: ignore[attr-defined]
    assert find_ray_names() == RayNames()


def test_directory_of_a_training() -> None:
    """Workers that replace others have another address, and the same directory; another training has its own."""
    first, second = ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": port} for port in ("4711", "4712"))
    assert job_key(first, "0a1b") == job_key(second, "0a1b") != job_key(first, "0a1c")
    assert job_key(first) != job_key(second)
