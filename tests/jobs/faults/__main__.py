"""Command line: `python -m tests.jobs.faults`. Causes every fault of the matrix and prints the reports about it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.jobs.faults.ends.endings import ENDINGS, observe_ending, observe_kill
from tests.jobs.faults.faulty_job import THRESHOLD_S, faulty_job
from tests.jobs.faults.outcome import Outcome, observe, observe_findings
from tests.jobs.faults.rows import FINDING_ROWS, NO_STALL, NODE_ROWS, ROWS, SPINNING, FindingRow, Row
from tests.jobs.faults.simulated.healthy import ALL_ROUTINES, STEPS_OF_A_JOB, run_jobs, show
from tests.jobs.faults.simulated.worlds import Score
from tests.support.launch.nodes import Nodes, nodes, why_not
from tests.support.launch.warm_python import WarmPython

WORLDS: Final = 1_000
HEALTHY_JOBS: Final = len(ALL_ROUTINES)
"""A sample; `tests.jobs.faults.simulated.healthy` runs any number."""


def main() -> int:
    """Run all rows; returns the exit code."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    console = Console(width=None if sys.stdout.isatty() else 160)
    python = WarmPython()
    table = Table("fault", "verdict", "ranks", "time to verdict", "what is said", title=f"threshold {THRESHOLD_S:g} s")
    wrong = 0
    for row in (*ROWS, SPINNING):
        console.print(f"{row.title} …")
        outcome = _run(python, row)
        wrong += bool(outcome.problems)
        _add(table, row.title, outcome)
    for row in FINDING_ROWS:
        console.print(f"{row.title}, without a stall …")
        for finding, outcome in zip(row.here, _find(python, row), strict=True):
            wrong += bool(outcome.problems)
            _add(table, finding.name, outcome)
    rows = len(ROWS) + 1 + sum(len(row.here) for row in FINDING_ROWS)
    if why_not():
        console.print(f"faults between two nodes are left out: {why_not()}")
    else:
        rows += len(NODE_ROWS)
        wrong += _run_on_two_nodes(python, table, console)
    rows += len(ENDINGS) + 1
    wrong += _end_suddenly(python, table, console)
    python.close()
    console.print(table)
    console.print(f"{rows - wrong} of {rows} right")
    wrong += _simulate(console)
    wrong += _watch_healthy_jobs(console)
    return int(wrong > 0)


def _run_on_two_nodes(python: WarmPython, table: Table, console: Console) -> int:
    """Run the rows between two nodes; returns how many verdicts were wrong."""
    wrong = 0
    with nodes(2) as two:
        for row in NODE_ROWS:
            console.print(f"{row.title}, on two nodes …")
            outcome = _run(python, row, two)
            wrong += bool(outcome.problems)
            _add(table, f"{row.title}, on two nodes", outcome)
    return wrong


def _end_suddenly(python: WarmPython, table: Table, console: Console) -> int:
    """End jobs under torchrun suddenly; returns how many verdicts were wrong. See also `ends.kills`."""
    wrong = 0
    ways: list[tuple[str, Callable[[], Outcome]]] = [("SIGKILL in a busy loop", lambda: observe_kill(python))]
    ways += [(ending.title, partial(observe_ending, ending, python)) for ending in ENDINGS]
    for title, way in ways:
        console.print(f"{title} …")
        outcome = way()
        wrong += bool(outcome.problems)
        _add(table, title, outcome)
    return wrong


def _simulate(console: Console) -> int:
    """Judge simulated worlds and print how many verdicts were right; returns how many were wrong."""
    console.print(f"{WORLDS} simulated worlds …")
    score = Score()
    for seed in range(WORLDS):
        score.judge(seed)
    console.print(
        f"{score.worlds} simulated worlds of up to {score.ranks:,} ranks, {score.faults} of them with a fault: "
        f"precision {score.precision:.3f}, recall {score.recall:.3f}"
    )
    for text in score.wrong:
        console.print(text)
    return len(score.wrong)


def _watch_healthy_jobs(console: Console) -> int:
    """Watch healthy jobs in simulated time and print what was reported; returns how many reports were false."""
    console.print(f"{HEALTHY_JOBS} healthy jobs of up to {STEPS_OF_A_JOB:,} steps …")
    total = show(console, run_jobs(HEALTHY_JOBS))
    return len(total.stalls) + len(total.findings)


def _add(table: Table, title: str, outcome: Outcome) -> None:
    said = "; ".join(outcome.problems) or outcome.sentence
    age = f"{outcome.age_s:.1f} s" if outcome.age_s else ""
    table.add_row(title, outcome.verdict, outcome.ranks, age, said)


def _run(python: WarmPython, row: Row, two: Nodes | None = None) -> Outcome:
    size = row.size if two is None else 4
    others = {"environ": row.environ, "of_rank": row.of_rank, "worker": row.worker, "nodes": two}
    with faulty_job(python, row.name, ranks=size, **others) as job:
        try:
            return observe(row, job)
        except AssertionError as error:
            return _missing(error)


def _find(python: WarmPython, row: FindingRow) -> list[Outcome]:
    with faulty_job(python, row.name, ranks=row.size, environ=NO_STALL | row.environ) as job:
        try:
            return observe_findings(row, job)
        except AssertionError as error:
            return [_missing(error)] * len(row.here)


def _missing(error: AssertionError) -> Outcome:
    return Outcome("-", "", "", 0.0, 0.0, (str(error),))


if __name__ == "__main__":
    sys.exit(main())
