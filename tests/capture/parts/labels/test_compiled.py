"""torch.compile produces the same results with labels as without recording."""

from __future__ import annotations

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import IN_PYTHON


@pytest.mark.thorough
@IN_PYTHON
def test_same_graphs(jobs: Jobs) -> None:
    """Models of DDP, both FSDPs, pipelines and a sliced mesh have equal graphs, breaks, results and warnings."""
    plain = jobs.run("compiled_parallel", 2, "off", timeout_s=120)
    ours = jobs.run("compiled_parallel", 2, "on", timeout_s=120)
    for with_us, without_us in zip(ours.ranks, plain.ranks, strict=True):
        assert len(without_us.lines()) == 5
        assert with_us.lines() == without_us.lines()
    labels = {operation.label for operation in ours.tapes[1].operations}
    assert {"FSDP 0", "FSDP 2", "FSDP root", "pipeline stage 1, fwd, microbatch 1", "DDP bucket 0"} <= labels
