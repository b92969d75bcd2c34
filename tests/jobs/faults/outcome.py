"""What was reported about a fault, and what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otel_torchdist.telemetry import semconv
from tests.jobs.faults.faulty_job import FaultyJob
from tests.jobs.faults.rows import Finding, FindingRow, Row
from tests.support.receivers.otlp_receiver import ReceivedSpan
from tests.support.waiting import until

ON_ITS_WAY_S = 0.5
"""Time allowed from the agent's verdict to the Collector."""
MARKED_S = 10.0
"""How long the marks of operations may come after the verdict; on a loaded machine not with the same export."""


@dataclass(frozen=True)
class Outcome:
    """The first report about a fault that the Collector received.

    Attributes:
        verdict: Kind of the verdict.
        ranks: The ranks that it names.
        sentence: Its whole sentence.
        age_s: How long the first rank had waited when the verdict was given.
        arrived_s: How long it had waited when the verdict arrived.
        problems: Differences from what is expected.
    """

    verdict: str
    ranks: str
    sentence: str
    age_s: float
    arrived_s: float
    problems: tuple[str, ...]


def observe(row: Row, job: FaultyJob) -> Outcome:
    """Wait for the first verdict on a job and compare it with what the row asks for.

    Raises:
        AssertionError: No verdict came.
    """
    root, arrived_s = job.first_verdict()
    found = root.attributes
    verdict, ranks = str(found[semconv.VERDICT]), str(found.get(semconv.VERDICT_RANKS, ""))
    sentence, age_s = root.error or "", float(found[semconv.STALL_AGE])
    line = _line_of(row, job, root) if row.line and ranks else 0
    marked = _marked(row, job)
    due_s = row.due_s + job.lag_s()
    checks = {
        f"the verdict is {verdict}, not {row.verdict}": verdict == row.verdict,
        f"ranks {ranks or 'none'} are named, not {row.ranks or 'none'}": ranks == row.ranks,
        f"the operations of ranks {marked} are marked, not those of {row.marked}": marked == row.marked,
        f"it does not say: {row.said}": row.said in sentence,
        f"it does not name line {row.line_number}": not row.line or f"{row.worker.name}:{row.line_number}" in sentence,
        f"the bar shows line {line}, not {row.line_number}": not row.line or line == row.line_number,
        f"it came {age_s:.1f} s after the beginning": age_s <= due_s,
        f"it arrived {arrived_s:.1f} s after the beginning": arrived_s <= due_s + ON_ITS_WAY_S,
        "there is more than one incident": len({one.trace_id for one in job.roots()}) == 1,
    }
    return Outcome(verdict, ranks, sentence, age_s, arrived_s, _failed(checks))


def observe_health(job: FaultyJob) -> Outcome:
    """Wait for the end of a job without a fault, about which nothing is reported."""
    codes = [done.code for done in job.join()]
    spans = job.receiver.wait_for(lambda spans: any(span.name == "init_process_group" for span in spans))
    shown = [span.name for span in spans if "stall" in span.name or "in progress" in span.name]
    checks = {f"its ranks end with {codes}": not any(codes), f"{shown} is reported": not shown}
    return Outcome("", "", "", 0.0, 0.0, _failed(checks))


def observe_findings(row: FindingRow, job: FaultyJob) -> list[Outcome]:
    """Wait for the findings in a job without a stall, and compare them with what the row asks for.

    Raises:
        AssertionError: Fewer came.
    """
    until(lambda: len(job.findings()) >= len(row.here), 60, lambda: str([found.error for found in job.findings()]))
    spans = job.findings()
    return [_compared(finding, spans, len(spans) - len(row.here), job) for finding in row.here]


def _compared(finding: Finding, spans: Sequence[ReceivedSpan], more: int, job: FaultyJob) -> Outcome:
    of_it = [span for span in spans if (span.error or "").startswith(finding.said)]
    found = (of_it or [*spans])[0]
    verdict, ranks = str(found.attributes[semconv.VERDICT]), str(found.attributes.get(semconv.VERDICT_RANKS, ""))
    checks = {
        f"it is said {len(of_it)} times: {finding.said}": len(of_it) == 1,
        f"the verdict is {verdict}, not {finding.verdict}": verdict == finding.verdict,
        f"ranks {ranks or 'none'} are named, not {finding.ranks}": ranks == finding.ranks,
        f"there are {more} more findings": more == 0,
        "there is a stall": job.roots() == [],
    }
    return Outcome(verdict, ranks, found.error or "", 0.0, 0.0, _failed(checks))


def _failed(checks: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(problem for problem, is_well in checks.items() if not is_well)


def _marked(row: Row, job: FaultyJob) -> tuple[int, ...]:
    """Ranks with an in-progress operation, where the row asks for them."""
    deadline = time.monotonic() + MARKED_S
    while (marked := job.marked()) != row.marked and row.marked and time.monotonic() < deadline:
        time.sleep(0.01)
    return marked if row.marked else ()


def _line_of(row: Row, job: FaultyJob, root: ReceivedSpan) -> int:
    first = int(row.ranks.partition("-")[0])
    return int(job.bar(root, first).attributes.get(semconv.CODE_LINE, 0))
