"""Backends written in Python, whose Works report less than torch's own."""

from __future__ import annotations

import pytest

from otel_torchdist.tape.layout import Flag
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER


@NATIVE_LATER
def test_works_that_cannot_be_asked(jobs: Jobs) -> None:
    """Every operation is recorded, and those that are waited for end; silently, and no Work is kept alive."""
    job = jobs.run("python_works", 1)
    if "cannot_begin" in job.ranks[0].line():
        pytest.skip("this torch takes no backends that are written in Python")
    [rank], [tape] = job.ranks, job.tapes
    assert rank.err == ""
    kept, dropped, *broadcasts, late = tape.operations
    assert [one.name for one in tape.operations] == ["all_reduce"] * 2 + ["broadcast"] * 6 + ["all_reduce"]
    assert (kept.how, late.how) == ("WAIT", "WAIT")
    assert dropped.how == "open"  # `wait_tensor` may still be called for it
    assert all(broadcast.how == "WAIT" for broadcast in broadcasts)
    # From the first wait on, each operation is known and marked to end only by a wait.
    assert Flag.END_BY_WAIT in late.raw.flags
    assert Flag.END_BY_WAIT not in kept.raw.flags
