"""What happens around a stall: its end, a second one behind it, an agent that dies, a Collector that is down."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from otel_torchdist.telemetry import semconv
from tests.jobs.faults.faulty_job import THRESHOLD_S, FaultyJob
from tests.jobs.faults.rows import DUE_S
from tests.support.waiting import until

pytestmark = pytest.mark.thorough
LATE_S = 2 * THRESHOLD_S


def test_agent_killed_during_a_stall_that_resolves(start: Callable[..., FaultyJob]) -> None:
    """A new agent continues the same incident, and reports at its end how long it was; no span comes twice."""
    job = start("late")
    first, _ = job.first_verdict()
    [agent] = job.agents()
    os.kill(agent, signal.SIGKILL)
    epochs = len(job.roots())
    until(lambda: len(job.roots()) > epochs)
    assert job.agents() != [agent]
    assert {root.attributes[semconv.VERDICT_RANKS] for root in job.roots()} == {"2"}
    job.open_gate()
    resolved_ns = time.time_ns()
    until(lambda: [root for root in job.roots() if semconv.STALL_RESOLVED in root.attributes])
    assert [done.code for done in job.join()] == [0, 0, 0]
    last = job.roots()[-1]
    assert last.attributes[semconv.STALL_RESOLVED] is True
    assert last.error is None
    assert abs(last.end_ns - resolved_ns) / 1e9 < 1.0
    assert abs(last.start_ns - first.start_ns) / 1e9 < 0.1
    assert len({root.trace_id for root in job.roots()}) == 1
    assert max(Counter(span.span_id for span in job.receiver.spans()).values()) == 1


def test_second_stall_is_reported_once_the_first_is_over(start: Callable[..., FaultyJob]) -> None:
    """Two pairs of ranks stall for reasons of their own: one incident at a time, and each names its own rank."""
    job = start("two", ranks=4, environ={"LATE_S": str(LATE_S + 1)})
    until(lambda: [root for root in job.roots() if root.attributes.get(semconv.VERDICT_RANKS) == "3"])
    named = [root.attributes[semconv.VERDICT_RANKS] for root in job.roots()]
    assert named == sorted(named)
    assert set(named) == {"1", "3"}


def test_collector_away_during_the_stall(start: Callable[..., FaultyJob]) -> None:
    """Reports made while the receiver was down arrive once it is up, with the age at which they were made."""
    job = start("late")
    until(lambda: any(span.name == "init_process_group" for span in job.receiver.spans()))
    job.receiver.pause()
    time.sleep(DUE_S)
    job.receiver.start()
    root, _ = job.first_verdict()
    assert root.attributes[semconv.VERDICT_RANKS] == "2"
    assert root.attributes[semconv.STALL_AGE] <= DUE_S
