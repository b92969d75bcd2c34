"""Why a rank comes later than its peers: what it spends the time on is named, not that it computes."""

from __future__ import annotations

import pytest

from otel_torchdist.agent.path_watch.findings import slow_parts_of
from otel_torchdist.analysis.advice import advise, check, finding
from otel_torchdist.analysis.critical_path.analysis import critical_path_of
from otel_torchdist.analysis.critical_path.critical_path import CauseKind, CriticalPath
from otel_torchdist.analysis.critical_path.result import describe_doing, left_out, path_result, sentence
from otel_torchdist.analysis.parallelism.calls import WorldCalls
from otel_torchdist.model.activity_kinds import TimeKind
from otel_torchdist.model.kinds import ActivityKind
from tests.analysis.critical_path.simulated import MS, Job

STEPS = 12


def path_of(job: Job) -> CriticalPath:
    """The path of what a job has recorded."""
    found = critical_path_of(job.histories())
    assert found is not None
    return found


def job_with(late: dict[ActivityKind, float], computing: float = 0.0) -> Job:
    """Steps in which all ranks do everything for a while, and rank 3 some of it for longer."""
    job = Job(4)
    for _ in range(STEPS):
        for rank in range(4):
            for kind in (ActivityKind.DATA_WAIT, ActivityKind.TORCH_SAVE, ActivityKind.BACKWARD):
                job.spend(rank, kind, 3 + (late.get(kind, 0) if rank == 3 else 0))
            job.compute(rank, 2 + (computing if rank == 3 else 0))
        job.collective(20)
        job.end_step()
    return job


def said(job: Job) -> str:
    """The sentence on the only cause that is a rank's, which is a finding, too."""
    found = path_of(job)
    [cause] = [cause for cause in found.causes if cause.kind is CauseKind.LINE]
    assert cause.ranks == (3,)
    text = sentence(cause, found.group_names)
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
    """Of all that a rank does for longer than its peers, the largest is named."""
    assert said(job_with(late, computing)) == text


def test_what_else_it_does() -> None:
    """If the largest is not nearly all, the sentence says how much later the rank comes in all."""
    assert said(job_with({ActivityKind.DATA_WAIT: 30, ActivityKind.BACKWARD: 20})) == (
        "rank 3 waits 30.0 ms longer for data than its peers before all_reduce in mesh at train (train.py:20), "
        "and takes 50.0 ms longer in all"
    )


def test_on_the_path() -> None:
    """The path says what a rank spent its pieces on, and a step that was left out what it spent the longest on."""
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
    assert [left_out(step, found.group_names) for step in found.longest][-1].endswith(
        "rank 0, in a checkpoint before all_reduce in mesh at train (train.py:30)"
    )


def test_advice() -> None:
    """Advice on a rank whose loader is slow sends nobody to profile its computing."""
    found = path_of(job_with({ActivityKind.DATA_WAIT: 50}))
    [advice] = [one for one in advise(None, WorldCalls(), found) if one.ranks == (3,)]
    assert finding(advice, found.group_names).startswith("rank 3 waits 50.0 ms longer for data than its peers before")
    assert check(advice).startswith("compare its storage")
