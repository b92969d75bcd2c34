"""Faults between two nodes, each with a network and an agent of its own: one verdict, and the right one."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_torchdist import semconv
from tests.jobs.faults.faulty_job import WORKER, FaultyJob
from tests.jobs.faults.outcome import observe, observe_finding
from tests.jobs.faults.rows import DUE_S, NO_STALL, NODE_VARIANTS, ON_NODES, FindingRow, Row, why_not_here
from tests.jobs.faults.tiers import params_of
from tests.support.commands.running import kill_processes_of, processes_of
from tests.support.launch.nodes import Nodes, nodes, why_not
from tests.support.launch.warm_python import WarmPython
from tests.support.receivers.otlp_receiver import GRPC, OtlpReceiver, ReceivedSpan
from tests.support.tapes.memory import memory_directory
from tests.support.waiting import until

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    """Two nodes."""
    with nodes(2) as made:
        yield made


@pytest.fixture
def start(warm_python: WarmPython, two: Nodes, tmp_path: Path) -> Iterator[Callable[..., FaultyJob]]:
    """Starts a job on them; see `FaultyJob` for its arguments."""
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(memory_directory())
        stack.callback(two.join)
        receiver = stack.enter_context(OtlpReceiver(GRPC, host=two.outside))

        def start(*arguments: str, **others: Any) -> FaultyJob:
            job = FaultyJob(warm_python, tmp_path, base, receiver, arguments, ranks=4, nodes=two, **others)
            stack.callback(job.kill)
            return job

        yield start


@pytest.mark.parametrize("row", params_of(ON_NODES, NODE_VARIANTS))
def test_fault_on_the_other_node(row: Row, start: Callable[..., FaultyJob]) -> None:
    """The first report to the Collector names kind, ranks and line, whichever agent has seen them."""
    outcome = observe(row, start(row.name, environ=row.environ))
    assert outcome.problems == (), outcome.sentence


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not_here("silent_reduce_op")), reason=why_not_here("silent_reduce_op"))
def test_reduce_op_differs_without_a_stall(start: Callable[..., FaultyJob]) -> None:
    """One odd call among hundreds, on the other node, is reported once, with the field and the rank."""
    row = FindingRow("silent_reduce_op", "", "mismatched", "3", "rank 3 has reduce op max where ranks 0-2 have sum in")
    job = start(row.name, environ={**NO_STALL, "SILENT_PAUSE_S": "0.02"})
    outcome = observe_finding(row, job)
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * 4
    assert outcome.problems == (), outcome.sentence
    assert len(job.findings()) == 1


@pytest.mark.thorough
def test_value_that_is_not_a_number(start: Callable[..., FaultyJob]) -> None:
    """It is brought by a rank of the other node, whose values are compared with those of all others."""
    said = "rank 3 is the first with values that are not numbers (NaN) in the inputs of all_reduce"
    row = FindingRow("nan", "", "non_finite", "3", said)
    job = start(row.name, environ={**NO_STALL, "OTEL_PYTHON_TORCHDIST_NUMERICS": "all"})
    outcome = observe_finding(row, job)
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * 4
    assert outcome.problems == (), outcome.sentence
    assert "those of ranks 0-2 were finite" in outcome.sentence
    assert len(job.findings()) == 1


@pytest.mark.thorough
def test_slow_line_on_the_other_node(start: Callable[..., FaultyJob]) -> None:
    """The agent that judges finds the line that makes all wait, though the rank runs on the other node."""
    job = start("slow_line", environ=NO_STALL, timeout_s=200)

    def slow() -> list[ReceivedSpan]:
        return [span for span in job.findings() if span.attributes[semconv.VERDICT] == "slow_rank"]

    found = until(slow, 180)[0]
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * 4
    [line] = [number for number, line in enumerate(WORKER.read_text().splitlines(), 1) if "# slow line" in line]
    assert found.attributes[semconv.CODE_LINE] == line
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
    job = start("all", "healthy")
    assert [done.code for done in job.join()] == [0] * 4
    spans = job.receiver.wait_for(lambda spans: any(span.name == "init_process_group" for span in spans))
    assert [span.name for span in spans if "stall" in span.name or "in progress" in span.name] == []


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
    assert found[semconv.STALL_AGE] <= threshold_s + 2
    time.sleep(2)  # an agent that judges alone would have reported by now
    job.open_gate()
    assert [done.code for done in job.join()] == [0] * 4
    assert {(root.trace_id, root.attributes[semconv.VERDICT_RANKS]) for root in job.roots()} == {(root.trace_id, "3")}


def test_partition_that_heals(start: Callable[..., FaultyJob], two: Nodes, tmp_path: Path) -> None:
    """Each half reports that the other one's agent does not answer, in one trace; both report when it is over."""
    job = start("cut")
    until(job.agents_have_met)
    time.sleep(3)  # long enough for an exchange too, which agents without a stall make every 2 s
    pause = tmp_path / "pause"
    pause.touch()
    until(lambda: len(list(tmp_path.glob("paused-*"))) == 4)
    two.part()
    pause.unlink()
    root, _ = job.first_verdict()
    assert root.attributes[semconv.VERDICT] == "unreachable", root.error
    # Agents try twice before they call one unreachable, and each try takes up to 0.7 s: beside others, 4 s are too few.
    assert root.attributes[semconv.STALL_AGE] <= DUE_S + 1
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
