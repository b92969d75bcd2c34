"""Faults between two nodes, each with a network and an agent of its own: one verdict, and the right one."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from typing import Any

import pytest

from otel_torchdist.telemetry import semconv
from tests.jobs.faults.faulty_job import FaultyJob, faulty_job
from tests.jobs.faults.outcome import Outcome, observe, observe_findings, observe_health
from tests.jobs.faults.rows import DUE_S, NO_STALL, NODE_FINDINGS, NODE_ROWS, QUIET, FindingRow, Row, line_in
from tests.support.commands.running import kill_processes_of, processes_of
from tests.support.launch.nodes import Nodes, nodes, why_not
from tests.support.launch.side_by_side import params_of, selected, side_by_side
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import ReceivedSpan
from tests.support.waiting import until

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    """Two nodes."""
    with nodes(2) as made:
        yield made


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, warm_python: WarmPython, two: Nodes
) -> Iterator[Mapping[str, Future[Outcome]]]:
    """The reports of each fault; each job runs once."""

    def run(row: Row | FindingRow) -> Outcome:
        with faulty_job(warm_python, row.name, environ=row.environ, ranks=4, nodes=two) as job:
            if isinstance(row, Row):
                return observe(row, job)
            [outcome] = observe_findings(row, job)
            job.open_gate()
            assert [done.code for done in job.join()] == [0] * 4
            assert len(job.findings()) == 1
            return outcome

    with side_by_side(run, selected(request, "row")) as outcomes:
        yield outcomes


@pytest.fixture
def start(
    outcomes: Mapping[str, Future[Outcome]], warm_python: WarmPython, two: Nodes
) -> Iterator[Callable[..., FaultyJob]]:
    """Starts a job on them once all others have ended; see `FaultyJob` for its arguments."""
    wait(outcomes.values())
    with contextlib.ExitStack() as stack:
        stack.callback(two.join)

        def start(*arguments: str, **others: Any) -> FaultyJob:
            return stack.enter_context(faulty_job(warm_python, *arguments, ranks=4, nodes=two, **others))

        yield start


@pytest.mark.parametrize("row", params_of([], NODE_ROWS))
def test_fault_on_the_other_node(row: Row, outcomes: Mapping[str, Future[Outcome]]) -> None:
    """The first report to the Collector names kind, ranks and line, whichever agent has seen them."""
    outcome = outcomes[row.title].result()
    assert outcome.problems == (), outcome.sentence


@pytest.mark.parametrize("row", params_of([], [row for row in NODE_FINDINGS if row.here]))
def test_finding_on_the_other_node(row: FindingRow, outcomes: Mapping[str, Future[Outcome]]) -> None:
    """An odd call among hundreds, and an odd value, are reported once, with the rank, and without a stall."""
    outcome = outcomes[row.title].result()
    assert outcome.problems == (), outcome.sentence
    assert outcome.verdict != "non_finite" or "the inputs of ranks 0-2 were finite" in outcome.sentence


@pytest.mark.thorough
def test_slow_line_on_the_other_node(start: Callable[..., FaultyJob]) -> None:
    """The agent that judges finds the line that makes all wait, though the rank runs on the other node."""
    job = start("slow_line", environ=NO_STALL, timeout_s=200)

    def slow() -> list[ReceivedSpan]:
        return [span for span in job.findings() if span.attributes[semconv.VERDICT] == "slow_rank"]

    found = until(slow, 180)[0]
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * 4
    assert found.attributes[semconv.CODE_LINE] == line_in("# slow line", QUIET)
    assert found.attributes[semconv.VERDICT_COVERAGE] == "4/4"
    assert (found.error or "").startswith("rank 3 computes ")
    # On a loaded machine the rank may be slow before another line, too.
    reported = Counter((span.attributes[semconv.VERDICT_RANKS], span.attributes[semconv.CODE_LINE]) for span in slow())
    assert max(reported.values()) == 1
    assert {ranks for ranks, _ in reported} == {"3"}
    assert job.roots() == []


@pytest.mark.thorough
@pytest.mark.parametrize("linger_ms", ["0", "60000"])
def test_dtype_differs_in_a_job_that_is_over(start: Callable[..., FaultyJob], linger_ms: str) -> None:
    """An odd call on the other node, among the last of all, is compared before the agents leave, and only once."""
    job = start("short_dtype", environ={**NO_STALL, "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": linger_ms})
    assert [done.code for done in job.join()] == [0] * 4
    until(job.findings)
    if linger_ms == "0":
        until(lambda: not processes_of(job.base), 40)
    [found] = job.findings()
    assert found.attributes[semconv.VERDICT_RANKS] == "3", found.error


@pytest.mark.thorough
def test_healthy_run(start: Callable[..., FaultyJob]) -> None:
    """If all steps are written as they should be, nothing is reported."""
    assert observe_health(start("all", "healthy")).problems == ()


@pytest.mark.thorough
def test_first_collective_of_all(start: Callable[..., FaultyJob]) -> None:
    """No collective has ended yet that would prove the run's id; the agents have met, and one judges for all."""
    threshold_s = 8.0  # agents start and meet within it, as they do within the default of 10 s
    settings = {"GOOD_STEPS": "0", "OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT": str(int(threshold_s * 1000))}
    job = start("late", environ=settings)
    root, _ = job.first_verdict()
    found = root.attributes
    assert (found[semconv.VERDICT], found[semconv.VERDICT_RANKS]) == ("absent", "3"), root.error
    assert found[semconv.VERDICT_COVERAGE] == "4/4"
    assert found[semconv.STALL_AGE] <= threshold_s + 2 + job.lag_s()
    time.sleep(2)  # an agent that judges alone would have reported by now
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * 4
    assert {(root.trace_id, root.attributes[semconv.VERDICT_RANKS]) for root in job.roots()} == {(root.trace_id, "3")}


def test_partition_that_heals(start: Callable[..., FaultyJob], two: Nodes) -> None:
    """Each half reports that the other one's agent does not answer, in one trace; both report when it is over."""
    job = start("cut")
    until(job.agents_have_met)
    time.sleep(3)  # long enough for an exchange too, which agents without a stall make every 2 s
    pause = job.folder / "pause"
    pause.touch()
    until(lambda: len(list(job.folder.glob("paused-*"))) == 4)
    two.part()
    pause.unlink()
    root, _ = job.first_verdict()
    assert root.attributes[semconv.VERDICT] == "unreachable", root.error
    # Agents try twice before they call one unreachable, and each try takes up to 0.7 s: beside others, 4 s are too few.
    assert root.attributes[semconv.STALL_AGE] <= DUE_S + 1 + job.lag_s()
    until(lambda: len({root.attributes[semconv.VERDICT_RANKS] for root in job.roots()}) == 2)
    assert {root.attributes[semconv.VERDICT_RANKS] for root in job.roots()} == {"0-1", "2-3"}
    assert len({root.trace_id for root in job.roots()}) == 1
    two.join()
    until(lambda: any(semconv.STALL_RESOLVED in root.attributes for root in job.roots()), 60)
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * 4
    assert max(Counter(span.span_id for span in job.receiver.spans()).values()) == 1


@pytest.mark.thorough
def test_agent_that_judges_is_killed(start: Callable[..., FaultyJob]) -> None:
    """The other agent continues in the same trace, names the same rank, and no span id comes twice."""
    job = start("late")
    first, _ = job.first_verdict()
    judge = job.base / "node-0"
    time.sleep(1)  # agents pass on what they have reported five times a second
    deadline = time.monotonic() + 30
    reported = len(job.roots())
    while len(job.roots()) == reported:
        assert time.monotonic() < deadline
        kill_processes_of(judge)  # also the one that the ranks start as its replacement
        time.sleep(0.05)
    last = job.roots()[-1]
    assert last.trace_id == first.trace_id
    named = [root.attributes[semconv.VERDICT_RANKS] for root in (first, last)]
    assert named == ["3", "3"], (first.error, last.error)
    assert last.attributes[semconv.STALL_EPOCH] > first.attributes[semconv.STALL_EPOCH]
    assert (first.trace_id, first.span_id) in {link for root in job.roots() for link in root.links}
    assert max(Counter(span.span_id for span in job.receiver.spans()).values()) == 1
