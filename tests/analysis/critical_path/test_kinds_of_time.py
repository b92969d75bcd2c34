"""Causes name the kind of time that a slow rank spends: waiting for data, checkpoints, backward, computing."""

from __future__ import annotations

import pytest

from otel_torchdist.agent.path_watch.findings import slow_parts_of
from otel_torchdist.analysis.advice import advise, check, finding
from otel_torchdist.analysis.critical_path.analysis import critical_path_of
from otel_torchdist.analysis.critical_path.critical_path import CauseKind, CriticalPath
from otel_torchdist.analysis.critical_path.result import path_result
from otel_torchdist.analysis.critical_path.wording import describe_cause, describe_doing, describe_outlier
from otel_torchdist.analysis.parallelism.calls import WorldCalls
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.kinds import ActivityKind
from tests.analysis.critical_path.simulated import MS, Job

STEPS = 12


def path_of(job: Job) -> CriticalPath:
    """Return the critical path of a job."""
    found = critical_path_of(job.histories())
    assert found is not None
    return found


def job_with(late: dict[ActivityKind, float], computing: float = 0.0) -> Job:
    """Return a job whose ranks spend equal times on each activity, except for rank 3's extra time."""
    job = Job(4)
    for _ in range(STEPS):
        for rank in range(4):
            for kind in (ActivityKind.DATA_WAIT, ActivityKind.TORCH_SAVE, ActivityKind.BACKWARD):
                job.spend(rank, kind, 3 + (late.get(kind, 0) if rank == 3 else 0))
            job.compute(rank, 2 + (computing if rank == 3 else 0))
        job.collective(20)
        job.end_step()
    return job


def sentence_on(job: Job) -> str:
    """Return the sentence on the only slow rank, which is also the finding's."""
    found = path_of(job)
    [cause] = [cause for cause in found.causes if cause.kind is CauseKind.LINE]
    assert cause.ranks == (3,)
    text = describe_cause(cause, found.group_names)
    assert [part.text.split(";")[0] for part in slow_parts_of(found)] == [text]
    return text.removesuffix(" than its peers before all_reduce in mesh at train (train.py:20)")


@pytest.mark.parametrize(
    ("late", "computing", "text"),
    [
        ({ActivityKind.DATA_WAIT: 52.1}, 0, "rank 3 waits 52.1 ms longer for data"),
        ({ActivityKind.TORCH_SAVE: 40}, 0, "rank 3 spends 40.0 ms longer in checkpoints"),
        ({ActivityKind.BACKWARD: 40}, 0, "rank 3 computes 40.0 ms longer in the backward pass"),
        ({}, 40, "rank 3 computes 40.0 ms longer"),
        ({ActivityKind.DATA_WAIT: 50, ActivityKind.BACKWARD: 5}, 5, "rank 3 waits 50.0 ms longer for data"),
        ({ActivityKind.DATA_WAIT: 10, ActivityKind.BACKWARD: 5}, 30, "rank 3 computes 45.0 ms longer"),
    ],
)
def test_the_largest_is_named(late: dict[ActivityKind, float], computing: float, text: str) -> None:
    """The sentence names the kind of time with the largest excess."""
    assert sentence_on(job_with(late, computing)) == text


def test_what_else_it_does() -> None:
    """If the largest kind is not nearly the whole excess, the sentence also gives the total."""
    assert sentence_on(job_with({ActivityKind.DATA_WAIT: 30, ActivityKind.BACKWARD: 20})) == (
        "rank 3 waits 30.0 ms longer for data than its peers before all_reduce in mesh at train (train.py:20), "
        "and takes 50.0 ms longer in all"
    )


def test_on_the_path() -> None:
    """The pieces of the path, and the longest piece of a step that is left out, show their kinds of time."""
    job = job_with({ActivityKind.DATA_WAIT: 50})
    for rank in range(4):
        job.spend(rank, ActivityKind.TORCH_SAVE, 900 if rank == 0 else 1)
    job.collective(30)
    job.end_step()
    for _ in range(3):
        job.collective(20)
        job.end_step()
    found = path_of(job)
    [(_, spent)] = [(key, kinds) for key, kinds in found.spent.items() if key[0] == 3 and kinds.get(TimeKind.DATA)]
    assert spent[TimeKind.DATA] == 53 * MS
    assert describe_doing(spent) == "waiting for data"
    assert {part.doing for part in path_result(found).pieces if part.rank == 3} == {"waiting for data", ""}
    assert [describe_outlier(step, found.group_names) for step in found.longest][-1].endswith(
        "rank 0, in a checkpoint before all_reduce in mesh at train (train.py:30)"
    )


def test_advice() -> None:
    """Advice on a rank with a slow loader points at the loader, not at computing."""
    found = path_of(job_with({ActivityKind.DATA_WAIT: 50}))
    [advice] = [advice for advice in advise(None, WorldCalls(), found) if advice.ranks == (3,)]
    assert finding(advice, found.group_names).startswith("rank 3 waits 50.0 ms longer for data than its peers before")
    assert check(advice).startswith("compare its storage")
