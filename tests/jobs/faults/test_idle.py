"""Jobs in which no rank calls an operation for long: one that stands still, and others that work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_IDLE_AFTER
from otel_torchdist.telemetry import semconv
from tests.jobs.faults.faulty_job import FaultyJob
from tests.jobs.faults.rows import line_in
from tests.support.commands.asking import ask
from tests.support.waiting import until

pytestmark = pytest.mark.thorough
WORKER = Path(__file__).parent / "workers" / "standing.py"
EARLY = {OTEL_PYTHON_TORCHDIST_IDLE_AFTER: "2"}
LOCKED = line_in("# locked", WORKER)


def test_all_ranks_wait_for_a_lock(start: Callable[..., FaultyJob]) -> None:
    """It is said where all ranks stand, in which function of a library, and no stall; when they go on, all is well."""
    job = start("locked", worker=WORKER, environ=EARLY)
    until(job.findings, 60.0)
    [found] = job.findings()
    assert (found.attributes[semconv.VERDICT], found.attributes[semconv.VERDICT_RANKS]) == ("idle", "0-2")
    assert found.attributes[semconv.CODE_LINE] == LOCKED
    assert (found.error or "").startswith(
        f"ranks 0-2 are in locked at standing.py:{LOCKED}, in FileBaton.wait: no rank is in an operation, and none has "
    )
    job.open_gate()
    assert [done.code for done in job.join()] == [0, 0, 0]
    assert job.roots() == []


def test_job_that_is_ended_while_it_stands(start: Callable[..., FaultyJob]) -> None:
    """`diagnose` says once where the ranks stood, although their agent has seen that come to an end."""
    job = start("locked", worker=WORKER, environ=EARLY)
    until(job.findings, 60.0)
    job.kill_ranks()
    [kept] = job.base.glob("*/findings-*.json")
    until(lambda: json.loads(kept.read_text())[0]["until_ns"] > 0)
    asked = ask(job.base)
    assert (asked.code, asked.out.count("finding")) == (1, 1), asked.out
    assert f"ranks 0-2 were in locked at standing.py:{LOCKED}" in asked.out


@pytest.mark.parametrize("case", ["evaluates", "builds"])
def test_ranks_that_work(start: Callable[..., FaultyJob], case: str) -> None:
    """Ranks that compute, or wait for a child that does, are not reported, however long they call nothing."""
    job = start(case, worker=WORKER, environ=EARLY, ranks=2)
    assert [done.code for done in job.join()] == [0, 0]
    job.receiver.wait_for(lambda spans: any(span.name == "init_process_group" for span in spans))
    assert job.findings() == []
    assert job.roots() == []
