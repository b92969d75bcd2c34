"""What `watch` and `diagnose` say of real workers of RPC: those that are fine, and those whose calls cannot go on."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.gloo_jobs import THRESHOLD_S, GlooJobs
from tests.support.commands.running import Running

WORKER = Path(__file__).parent / "workers" / "remote_calls.py"
OPTIONS = ("--threshold", str(THRESHOLD_S))
STARVED = (
    "all 2 RPC threads of worker0 (rank 0) wait for worker1, and all 2 RPC threads of worker1 (rank 1) wait for "
    "worker0; calls are served, answered and timed out on these threads, so none can end"
)
NEXT_STEP = "raise num_worker_threads, or use async_execution"


@pytest.fixture
def workers(gloo: Callable[..., GlooJobs]) -> Iterator[Callable[[str], GlooJobs]]:
    """Starts two workers, which are killed after the test."""
    started: list[GlooJobs] = []

    def start(deed: str) -> GlooJobs:
        started.append(gloo(deed, ranks=2, reader="none", worker=WORKER))
        return started[-1]

    yield start
    for job in started:
        job.kill()


def test_full_pools(workers: Callable[[str], GlooJobs], start_beside: Callable[..., Running]) -> None:
    """Nested calls with no thread left to serve them are found, and never time out; both commands name all workers."""
    job = workers("starved")
    watch = start_beside(job, "watch", "--plain", *OPTIONS)
    assert f"{STARVED}. next: {NEXT_STEP}" in watch.wait_for(r"finding: (.*)").group(1)
    diagnose = start_beside(job, "diagnose", *OPTIONS)
    assert diagnose.end() == 1, diagnose.story()
    assert f"  and    {STARVED}\n  next   {NEXT_STEP}\n" in diagnose.out
    assert len(re.findall(r"^  runs   nested for worker[01] for [\d.]+ s$", diagnose.out, re.MULTILINE)) == 4
    assert len(re.findall(r"^  calls  nested on worker[01] for [\d.]+ s, called in", diagnose.out, re.MULTILINE)) >= 4


def test_callee_waits_for_its_caller(workers: Callable[[str], GlooJobs], start_beside: Callable[..., Running]) -> None:
    """A rank that waits for a function which waits for that rank in a collective: both are in a circle."""
    job = workers("circle")
    watch = start_beside(job, "watch", "--plain", *OPTIONS)
    said = watch.wait_for(r"STALL: (.*)").group(1)
    assert re.match(
        r"ranks 0-1 have waited for each other for [\d.]+ s: rank 0 waits in its call of reduce on worker1 \(rank 1\), "
        r"which is in all_reduce \(sequence 2, default_pg\) at ",
        said,
    ), said


@pytest.mark.thorough
def test_call_that_lasts_as_long_as_training(
    workers: Callable[[str], GlooJobs], start_beside: Callable[..., Running]
) -> None:
    """It is shown, and nothing is found; until the worker that runs it is stopped, and later killed."""
    job = workers("long")
    watch = start_beside(job, "watch", "--plain", "--keep", "60", *OPTIONS)
    watch.wait_for(r"rank 0 calling, run_trainer → worker1 .* for (?![0-2]\.)\d")  # however late `watch` is
    assert "rank 1 serving, run_trainer ← worker0" in watch.out
    diagnose = start_beside(job, "diagnose", "--json", *OPTIONS)
    assert diagnose.end() == 0, diagnose.story()
    document = json.loads(diagnose.out)
    assert (document["verdict"], document["stuck_calls"]) == (None, [])
    caller, callee = (rank["worker"] for rank in document["ranks"])
    assert (caller["name"], callee["name"], callee["leaving_s"] is None) == ("worker0", "worker1", False)
    [made], [served] = caller["calls"], callee["calls"]
    assert [(one["function"], one["peer"], one["served"]) for one in (made, served)] == [
        ("run_trainer", "worker1", False),
        ("run_trainer", "worker0", True),
    ]
    assert "finding" not in watch.out
    pid = job.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    stopped = (
        r"finding: worker1 \(rank 1\) does not run, because it is stopped by a signal: rank 0 has called it, "
        r"run_trainer for [\d.]+ s\. next: "
    )
    watch.wait_for(stopped)
    os.kill(pid, signal.SIGKILL)
    watch.wait_for(r"finding: worker1 \(rank 1\) .*: calls to it fail\. next: ")
    assert watch.out.count("finding:") == 2
