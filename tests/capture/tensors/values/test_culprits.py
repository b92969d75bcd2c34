"""The parameter to which a bad value belongs is named, in the buckets of DDP and the units of FSDP."""

from __future__ import annotations

import pytest

from otel_torchdist.model.rank_values import NonFiniteInput
from tests.support.launch.jobs import Jobs
from tests.support.worlds.finished import world_of_job

RANKS, BAD_RANK = 2, 1
KNOWN_AFTER = 3
"""Steps, after which DDP has rebuilt its buckets and written down what is in them."""

Named = tuple[list[str], list[NonFiniteInput]]


@pytest.fixture(scope="module")
def named(jobs: Jobs) -> dict[str, Named]:
    """The parameters that were spoilt in each part of a job, and what is known of the operations that sent them."""
    job = jobs.run("names_culprits", RANKS)
    values = {view.rank: view.values for view in world_of_job(job).ranks.values()}
    assert values[1 - BAD_RANK].non_finite == ()
    found = iter(values[BAD_RANK].non_finite)
    return {
        line["part"]: (line["spoilt"], [next(found) for _ in line["spoilt"]]) for line in job.ranks[BAD_RANK].lines()
    }


def test_in_buckets(named: dict[str, Named]) -> None:
    """The right one is named in each step: also in that in which DDP rebuilds its buckets, in another order."""
    spoilt, found = named["rebuilt"]
    assert [one.parameters and one.parameters.text for one in found] == spoilt
    counts = {one.parameters.count for one in found[KNOWN_AFTER:] if one.parameters is not None}
    assert counts == {2, 4}, "of both buckets"


def test_in_buckets_that_are_never_rebuilt(named: dict[str, Named]) -> None:
    """Those of models with unused parameters are in the order of the model."""
    spoilt, found = named["never_rebuilt"]
    assert [one.parameters and one.parameters.text for one in found] == spoilt
    assert all(one.label.startswith("DDP bucket") for one in found)


def test_in_units(named: dict[str, Named]) -> None:
    """Each rank's part of a unit's gradients has a part of each parameter."""
    spoilt, found = named["fsdp"]
    assert [one.parameters and one.parameters.text for one in found] == spoilt
    assert [one.parameters and one.parameters.count for one in found] == [2, 2, 4, 4, 4, 4]
