"""Checkpoints that hang, die or fail, in real processes, and the whole sentence about each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.telemetry import semconv
from tests.jobs.faults.faulty_job import FaultyJob
from tests.jobs.faults.rows import line_in
from tests.support.waiting import until

WORKER = Path(__file__).parent / "workers" / "saving.py"


def without_numbers(sentence: str | None, checkpoint: str) -> str:
    """A sentence without seconds, sequence numbers and steps, which depend on how long a job waits for its agent.

    The checkpoint's path in it becomes `CKPT`, and its clauses are those of one sentence, wherever the path breaks it.
    """
    text = re.sub(r"(sequence|in step) \d+", r"\1 N", (sentence or "").replace(checkpoint, "CKPT"))
    text = re.sub(r"\. ([A-Z\d])", lambda begin: f"; {begin[1].lower()}", text)
    return re.sub(r"(\d+ min )?\d+(\.\d+)? s", "N s", text)


def test_full_disk_and_hang(start: Callable[..., FaultyJob]) -> None:
    """A save that fails is a finding with rank and error; of one that hangs, the verdict says in which stage."""
    job = start("full_then_hangs", worker=WORKER, ranks=2)
    root, _ = job.first_verdict()
    until(job.findings)
    job.open_gate()
    assert [done.code for done in job.join()] == [0, 0]
    assert root.attributes[semconv.VERDICT_RANKS] == "1"
    assert without_numbers(root.error, str(job.folder / "saved")) == (
        "rank 1 is in checkpoint save CKPT, write_data, for N s (50.0 kB), and has not entered all_gather (sequence N, "
        "default_pg) for N s; it is in hang at "
        f"saving.py:{line_in('# hangs', WORKER)}; 1 of 2 ranks waits in stage write of the checkpoint; "
        "gloo raises an error in rank 0 in N s (timeout 2 min). "
        "next: check the storage of checkpoint save CKPT; if it is only slow, announce the wait with expect_wait"
    )
    [found] = job.findings()
    assert found.name == "finding: checkpoint save (checkpoint_failed)"
    assert found.attributes[semconv.VERDICT_RANKS] == "1"
    assert without_numbers(found.error, str(job.folder / "lost")) == (
        "checkpoint save CKPT in step N has failed on rank 1, in write_data: OSError: [Errno 28] No space left on "
        "device; rank 0 received it. next: remove the cause of the exception before the job ends: the last good "
        "checkpoint is an older one"
    )


@pytest.mark.thorough
def test_killed_in_write_data(start: Callable[..., FaultyJob]) -> None:
    """The verdict on a death says in which stage the process was, and its stage does not stay open for ever."""
    job = start("killed", worker=WORKER, ranks=2)
    root, _ = job.first_verdict()
    job.join()
    sentence = without_numbers(root.error, str(job.folder / "saved"))
    assert root.attributes[semconv.VERDICT] == "dead"
    assert "; it was in checkpoint save CKPT, write_data, for N s (50.0 kB); it was last in " in sentence
    named = "write_data was still in progress when the process was gone"
    until(lambda: [span for span in job.receiver.spans() if span.error == named], 30)


@pytest.mark.thorough
def test_two_threads_in_one_group(start: Callable[..., FaultyJob]) -> None:
    """Two threads of a rank whose blocking collectives of one gloo group overlap are reported, once."""
    job = start("two_threads", worker=WORKER, ranks=2)
    until(job.findings, 60)
    job.open_gate()
    assert [done.code for done in job.join()] == [0, 0]
    [found] = job.findings()
    calls = [f"{who} calls all_reduce at saving.py:{line_in('# meets', WORKER)}" for who in ("the main thread", "meet")]
    assert found.error in [
        f"two threads of ranks 0-1 share default_pg: {one} and {other}. The backend pairs calls in the order in which "
        "each rank makes them, so results may be wrong. next: give one of the two threads a group of its own "
        "(new_group)"
        for one, other in (calls, calls[::-1])
    ]
