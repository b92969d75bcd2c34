"""Faults that stall nothing: calls that do not match and silently give wrong results, and stragglers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from otel_torchdist.telemetry import semconv
from tests.jobs.faults.faulty_job import FaultyJob, faulty_job
from tests.jobs.faults.outcome import Outcome, observe_findings
from tests.jobs.faults.rows import ALL_VALUES, FINDING_VARIANTS, FINDINGS, NO_STALL, FindingRow, natively
from tests.support.commands.running import processes_of
from tests.support.launch.side_by_side import params_of, selected, side_by_side
from tests.support.launch.warm_python import WarmPython
from tests.support.native.native_library import environ_of
from tests.support.receivers.otlp_receiver import ReceivedSpan
from tests.support.waiting import until

DUE_S = 15.0
AFTER_THE_END_S = 5.0
"""Two for the comparison, the rest for the export on a loaded machine."""
STRAGGLER = next(row for row in FINDINGS if row.name == "straggler")
GOOD_STEPS_S = 5.0
"""They take a second and a half, and more on a loaded machine."""


@dataclass(frozen=True)
class Found:
    """The reports of a job with faults that stall nothing.

    Attributes:
        outcomes: The reports, each compared with its row.
        spans: The findings, also those of the job's end.
        acts: What a command of the user's has printed about findings.
        dumps: How many bundles of evidence there are.
    """

    outcomes: list[Outcome]
    spans: list[ReceivedSpan]
    acts: list[str]
    dumps: int


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, warm_python: WarmPython, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Found]]]:
    """The reports of each job, which goes on until then; a command and evidence follow each finding."""

    def run(row: FindingRow) -> Found:
        folder = tmp_path_factory.mktemp("acts")
        said, dumps = folder / "said", folder / "dumps"
        command = f"sh -c 'echo $TORCHDIST_STALL_VERDICT $TORCHDIST_STALL_RANKS >> {said}'"
        actions = {
            "OTEL_PYTHON_TORCHDIST_DUMP_DIR": str(dumps),
            "OTEL_PYTHON_TORCHDIST_ON_FINDING": f"dump,command:{command}",
        }
        environ = NO_STALL | row.environ | actions | environ_of(row.kernel)
        with faulty_job(warm_python, row.name, ranks=row.size, environ=environ) as job:
            job.wait_until_watched()
            began = time.monotonic()
            outcomes = observe_findings(row, job)
            assert time.monotonic() - began <= GOOD_STEPS_S + DUE_S + job.lag_s()
            until(lambda: said.exists() and len(said.read_text().splitlines()) >= len(row.here))
            job.open_gate()
            assert [done.code for done in job.join()] == [0] * row.size
            assert job.roots() == []
            return Found(outcomes, job.findings(), sorted(said.read_text().splitlines()), len([*dumps.glob("*.gz")]))

    with side_by_side(run, selected(request, "row")) as found:
        yield found


@pytest.mark.parametrize("row", params_of(FINDINGS, [*FINDING_VARIANTS, *natively(FINDINGS)]))
def test_finding(row: FindingRow, found: Mapping[str, Future[Found]]) -> None:
    """In a job that goes on, each fault is reported once, in time, with its ranks, and no stall is reported."""
    reported = found[row.title].result()
    assert [problem for outcome in reported.outcomes for problem in outcome.problems] == []
    assert len(reported.spans) == len(row.here)


@pytest.mark.parametrize("row", params_of(FINDINGS))
def test_actions_on_a_finding(row: FindingRow, found: Mapping[str, Future[Found]]) -> None:
    """A command of the user's runs once for each finding; evidence is written; the training goes on."""
    reported = found[row.title].result()
    assert reported.acts == sorted(f"{finding.verdict} {finding.ranks}" for finding in row.here)
    assert reported.dumps >= 1


@pytest.mark.thorough
def test_healthy_values(start: Callable[..., FaultyJob]) -> None:
    """Where every operation is looked at and every result is compared, a healthy job has no finding."""
    job = start("nan", "healthy", environ={**ALL_VALUES, "OTEL_PYTHON_TORCHDIST_AGENT_LINGER": "0"})
    assert [done.code for done in job.join()] == [0, 0, 0]
    until(lambda: not processes_of(job.base), 40)
    assert (job.findings(), job.roots()) == ([], [])


@pytest.mark.parametrize("row", params_of([STRAGGLER]))
def test_what_a_straggler_costs(row: FindingRow, found: Mapping[str, Future[Found]]) -> None:
    """A rank that computes for 82 ms where the others take 63 costs them about a fifth of their time."""
    [span] = found[row.title].result().spans
    assert 0.1 < span.attributes[semconv.STRAGGLER_SHARE] < 0.4, span.error
    assert 0.013 < span.attributes[semconv.STRAGGLER_LATENESS] < 0.06


@pytest.mark.parametrize(
    ("fault", "codes"), [("short_dtype", {0}), pytest.param("failing_dtype", {1, -9}, marks=pytest.mark.thorough)]
)
def test_finding_of_a_job_that_is_over(start: Callable[..., FaultyJob], fault: str, codes: set[int]) -> None:
    """Whether the job ends well or fails, a mismatch is reported within two seconds of its end."""
    job = start(fault, environ=NO_STALL)
    assert {done.code for done in job.join()} == codes
    ended = time.monotonic()
    until(job.findings)
    assert time.monotonic() - ended <= AFTER_THE_END_S
    [found] = job.findings()
    assert found.attributes[semconv.VERDICT_RANKS] == "2", found.error
    assert [root.attributes[semconv.VERDICT] for root in job.roots() if fault == "short_dtype"] == []
