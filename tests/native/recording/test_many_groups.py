"""A program that creates and destroys groups all the time does not fill its memory with what was known of them."""

from __future__ import annotations

import pytest

from otel_torchdist.capture.c10d.native_kernels import CHECKED_EVERY
from tests.support.launch.jobs import Jobs
from tests.support.native.native_library import KERNELS

GROUPS = 400


@pytest.mark.parametrize("kernel", KERNELS)
def test_destroyed_groups_are_forgotten(jobs_of: dict[str, Jobs], kernel: str) -> None:
    """A few of the last ones are kept, whose operations may be in flight; all calls are recorded."""
    job = jobs_of[kernel].run("many_groups")
    (seen,) = job.ranks[0].lines()
    assert seen["kept"] <= 2 * CHECKED_EVERY
    (tape,) = job.tapes
    assert sum(one.function == "use" for one in tape.operations) == 2 * GROUPS
    assert [one.failure for one in tape.operations if one.raw.tag == 77] == ["RuntimeError"] * (kernel == "native")
    assert all(one.raw.how for one in tape.operations)
