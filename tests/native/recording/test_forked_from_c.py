"""A child that C has forked is not its parent: what it calls does not end up on its parent's tape."""

from __future__ import annotations

import pytest

from otel_torchdist.capture.c10d.hot_path import OVERHEAD_SAMPLE
from tests.support.launch.jobs import Jobs
from tests.support.native.native_library import KERNELS


@pytest.mark.parametrize("kernel", KERNELS)
def test_child_of_c(jobs_of: dict[str, Jobs], kernel: str) -> None:
    """The library sees the fork at once; Python, which asks for its process only now and then, after a few calls."""
    job = jobs_of[kernel].run("forked_from_c")
    (seen,) = job.ranks[0].lines()
    assert seen["code"] == 0
    assert seen["names"] == 0
    assert seen["written"] <= (0 if kernel == "native" else OVERHEAD_SAMPLE)
