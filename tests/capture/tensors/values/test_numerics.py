"""Numerics of real trainings: the rank with the first NaN is found in each kind of training, without false alarms.

Trainings without a NaN are in `tests/jobs/worlds`.
"""

from __future__ import annotations

import pytest

from otel_torchdist.capture.tensors.numerics import is_chosen
from otel_torchdist.judge.stall.findings.non_finite import NonFinite
from tests.support.launch.jobs import Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.ranks.rank import SHOWS_REDUCE_OP
from tests.support.worlds.finished import findings_of, world_of_job

pytestmark = NATIVE_LATER
THOROUGH = pytest.mark.thorough
RANKS = 3
NO_RANK = -1
BAD_STEP = 3
KINDS = ("ddp", "fsdp", *(("tensor_parallel",) if SHOWS_REDUCE_OP else ()), "pipeline")
"""Without its reduce op an all_reduce is looked at in backward passes only."""
LATER = ("tensor_parallel", "pipeline")


@pytest.mark.parametrize("bad_rank", [pytest.param(0, marks=THOROUGH), 1, pytest.param(2, marks=THOROUGH)])
@pytest.mark.parametrize("kind", [pytest.param(one, marks=[THOROUGH] * (one in LATER)) for one in KINDS])
def test_first_nan(jobs: Jobs, kind: str, bad_rank: int) -> None:
    """The rank with the first NaN is named, with the step, and no other rank."""
    [found] = findings_of(jobs.run("numeric", RANKS, kind, str(bad_rank)))
    assert isinstance(found, NonFinite)
    assert (found.ranks, found.are_first, found.is_nan) == ((bad_rank,), True, True)
    if kind != "pipeline":
        assert found.step == BAD_STEP
        assert found.others == tuple(rank for rank in range(RANKS) if rank != bad_rank)


def test_some_ranks_look(jobs: Jobs) -> None:
    """Ranks outside of the setting record no numerics and do not count as finite, so no rank is called the first."""
    job = jobs.run("numeric", RANKS, "fsdp", "2", "0", "2")
    [found] = findings_of(job)
    assert isinstance(found, NonFinite)
    assert (found.ranks, found.others, found.are_first, found.unseen) == ((2,), (0,), False, (1,))
    for tape in job.tapes:
        looks = tape.identity.rank != 1
        assert tape.identity.checks_values is looks
        assert any(one.raw.numerics is not None for one in tape.operations) is looks


def test_what_is_right_is_no_finding(jobs: Jobs) -> None:
    """There is no finding for NaN in masks, initial values and overwritten buffers, and for unusual tensors."""
    job = jobs.run("numeric", RANKS, "on_purpose", str(NO_RANK))
    assert findings_of(job) == []
    assert not any("internal error" in rank.err for rank in job.ranks)


def test_what_is_not_over_is_not_compared(jobs: Jobs) -> None:
    """Outputs are not compared before the optimizer has waited for them in its step."""
    job = jobs.run("numeric", RANKS, "waits_late", str(NO_RANK))
    assert findings_of(job) == []
    for view in world_of_job(job).ranks.values():
        assert len(view.values.outputs) == 6 * 6, "each parameter's, in each step"


def test_all_members_sample_the_same(jobs: Jobs) -> None:
    """All members sample the same operations, also large broadcasts, whose inputs only the root has."""
    sampled = [
        [one.operation_id.sequence for one in view.values.outputs]
        for view in world_of_job(jobs.run("numeric", RANKS, "large", str(NO_RANK))).ranks.values()
    ]
    assert sampled[0] == sampled[1] == sampled[2]
    assert len(sampled[0]) == sum(is_chosen(sequence, 2, 2 << 20) for sequence in range(1, 49)) > 8


def test_training_is_bit_identical(jobs: Jobs) -> None:
    """Parameters and random state after a training with dropout equal those without numerics."""
    job = jobs.run("numeric", 2, "twice", str(NO_RANK))
    assert [done.line() for done in job.ranks] == [{"same": True}] * 2
