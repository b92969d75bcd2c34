"""The parameter with a non-finite gradient is named, in buckets of DDP and units of FSDP."""

from __future__ import annotations

import pytest

from otel_torchdist.model.rank_state.values import NonFiniteInput
from tests.support.launch.jobs import Jobs
from tests.support.worlds.finished import world_of_job

RANKS, BAD_RANK = 2, 1
KNOWN_AFTER = 3
"""Steps, after which DDP has rebuilt its buckets and written down what is in them."""

Named = tuple[list[str], list[NonFiniteInput]]


@pytest.fixture(scope="module")
def named(jobs: Jobs) -> dict[str, Named]:
    """Return the spoiled parameters of each part of a job, and the culprits on the tape."""
    job = jobs.run("names_culprits", RANKS)
    values = {view.rank: view.values for view in world_of_job(job).ranks.values()}
    assert values[1 - BAD_RANK].non_finite == ()
    found = iter(values[BAD_RANK].non_finite)
    return {
        line["part"]: (line["spoilt"], [next(found) for _ in line["spoilt"]]) for line in job.ranks[BAD_RANK].lines()
    }


def test_in_buckets(named: dict[str, Named]) -> None:
    """The right parameter is named in each step, also while DDP rebuilds its buckets in another order."""
    spoilt, found = named["rebuilt"]
    assert [one.parameters and one.parameters.text for one in found] == spoilt
    counts = {one.parameters.count for one in found[KNOWN_AFTER:] if one.parameters is not None}
    assert counts == {2, 4}, "of both buckets"


def test_in_buckets_that_are_never_rebuilt(named: dict[str, Named]) -> None:
    """Buckets of models with unused parameters are never rebuilt, and stay in the order of the model."""
    spoilt, found = named["never_rebuilt"]
    assert [one.parameters and one.parameters.text for one in found] == spoilt
    assert all(one.label.startswith("DDP bucket") for one in found)


def test_in_units(named: dict[str, Named]) -> None:
    """In FSDP, each rank's part of the message has a part of each parameter, and the right parameter is named."""
    spoilt, found = named["fsdp"]
    assert [one.parameters and one.parameters.text for one in found] == spoilt
    assert [one.parameters and one.parameters.count for one in found] == [2, 2, 4, 4, 4, 4]
