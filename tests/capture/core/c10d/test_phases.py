"""Calls of backward passes are told from other calls: in C++, hooks, compiled code and threads."""

from __future__ import annotations

import pytest

from otel_torchdist.model.kinds import Phase
from tests.support.launch.jobs import Job, Jobs
from tests.support.native.both_kernels import NATIVE_LATER
from tests.support.tapes.recorded import Recorded

pytestmark = NATIVE_LATER
IN = Phase.BACKWARD
OUT = Phase.OUTSIDE_BACKWARD
GATHER, SCATTER, REDUCE = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"
EXPECTED = {
    "ddp": {(REDUCE, IN)},
    "fsdp": {(GATHER, OUT), (GATHER, IN), (SCATTER, IN)},
    "tensor_parallel": {(REDUCE, OUT), (REDUCE, IN)},
    "functions": {(GATHER, OUT), (SCATTER, IN)},
    "compiled": {(GATHER, OUT), (SCATTER, IN)},
    "compiled_backward": {(GATHER, OUT), (SCATTER, IN)},
    "computed_again": {(REDUCE, OUT), (REDUCE, IN)},
    "nested": {(REDUCE, IN)},
    "by_hand": {(REDUCE, OUT), (REDUCE, IN)},
}
"""By part of the worker, what is called in which phase."""


@pytest.fixture(scope="module")
def job(jobs: Jobs) -> Job:
    """Two ranks."""
    return jobs.run("phases", 2)


def calls_of(job: Job, rank: int, part: str) -> list[Recorded]:
    """Return the calls of one part of the worker, in order."""
    [line] = [line for line in job.ranks[rank].lines() if line["part"] == part]
    return [one for one in job.tapes[rank].operations if line["first"] <= one.raw.number < line["end"]]


def plain(name: str) -> str:
    """Return an operation's name without the suffix of functional collectives."""
    return name.removesuffix("_coalesced")


@pytest.mark.parametrize("part", EXPECTED)
def test_phase(job: Job, part: str) -> None:
    """Every call has the phase of its rank at that moment, on both ranks."""
    for rank in range(2):
        found = calls_of(job, rank, part)
        assert {(plain(one.name), one.raw.phase) for one in found} == EXPECTED[part]


def test_reduced_by_a_hook_first(job: Job) -> None:
    """A hook's call belongs to the backward pass. The same call after the pass does not."""
    assert [one.raw.phase for one in calls_of(job, 0, "by_hand")] == [IN, OUT]


def test_on_a_thread_of_autograd(job: Job) -> None:
    """A call on a thread of autograd belongs to the backward pass that another thread has started."""
    [here] = {one.raw.thread for one in calls_of(job, 0, "functions")}
    [innermost] = calls_of(job, 0, "nested")
    assert innermost.raw.thread != here


def test_without_the_private_function(jobs: Jobs) -> None:
    """Without torch's private function the phase is unknown, and everything else is recorded as before."""
    [tape] = jobs.run("no_phase", 1).tapes
    operation = tape.only("all_reduce")
    assert (operation.raw.phase, operation.how, tape.lost) == (Phase.UNKNOWN, "WAIT", 0)


def test_in_callbacks(job: Job) -> None:
    """Calls on gloo's threads have no known phase, although they belong to a backward pass.

    All other calls have one. If a future is done when its callback is added, the callback runs on the thread that adds
    it.
    """
    found = calls_of(job, 0, "in_callbacks")
    phases = {one.raw.phase for one in found if one.name == REDUCE}
    assert IN in phases and phases <= {IN, Phase.UNKNOWN}
    for tape in job.tapes:
        assert {one.raw.phase is Phase.UNKNOWN for one in tape.operations if one.line} == {False}
        assert tape.lost == 0
