"""torch.compile produces the same results with recording as without."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from tests.support.launch.jobs import Jobs
from tests.support.launch.stderr import comparable


@pytest.mark.thorough
def test_same_graphs_and_all_recorded(jobs: Jobs) -> None:
    """Graphs, graph breaks, Dynamo's counters, results and warnings are equal, and every call is recorded."""
    plain = jobs.run("compiled", 1, "off")
    ours = jobs.run("compiled", 1, "on")
    for with_us, without_us in zip(ours.ranks[0].lines(), plain.ranks[0].lines(), strict=True):
        if sys.version_info >= (3, 13) and "breaks" in without_us:
            # With any hook of an optimizer, Dynamo does not see there that torch's step begins with a break.
            assert with_us.pop("breaks") == without_us.pop("breaks") - 1
        assert with_us == without_us
    assert comparable(ours.ranks[0].err) == comparable(plain.ranks[0].err)
    assert not plain.tapes
    [tape] = ours.tapes
    # Each function runs once under `explain` and three times compiled; one more for `fullgraph`.
    assert Counter(operation.name for operation in tape.operations) == {
        "all_reduce": 3 * 4 + 1,
        "all_gather_into_tensor_coalesced": 4,
        "reduce_scatter_tensor_coalesced": 4,
    }
    assert all(operation.has_ended for operation in tape.operations)
    assert len(tape.steps) == 2 + 2  # the scaler skips one of the last two
