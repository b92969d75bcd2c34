"""Command line: `python -m tests.faults`. Makes every fault of the matrix happen and prints what was said about it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.faulty_job import THRESHOLD_S, FaultyJob
from tests.faults.outcome import Outcome, observe
from tests.faults.rows import ROWS, Row
from tests.support.otlp_receiver import GRPC, OtlpReceiver
from tests.support.warm_python import WarmPython


def main() -> int:
    """Run all rows; returns the exit code."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        del os.environ[name]
    console = Console(width=None if sys.stdout.isatty() else 160)
    python = WarmPython()
    table = Table("fault", "verdict", "ranks", "time to verdict", "what is said", title=f"threshold {THRESHOLD_S:g} s")
    wrong = 0
    for row in ROWS:
        console.print(f"{row.title} …")
        outcome = _run(python, row)
        wrong += bool(outcome.problems)
        said = "; ".join(outcome.problems) or outcome.sentence
        table.add_row(row.title, outcome.verdict, outcome.ranks, f"{outcome.age_s:.1f} s", said)
    python.close()
    console.print(table)
    console.print(f"{len(ROWS) - wrong} of {len(ROWS)} right")
    return int(wrong > 0)


def _run(python: WarmPython, row: Row) -> Outcome:
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="otel-torchdist-faults-", dir="/dev/shm") as base,
        OtlpReceiver(GRPC) as receiver,
    ):
        job = FaultyJob(
            python,
            Path(folder),
            Path(base) / "tapes",
            receiver,
            [row.name],
            ranks=row.size,
            environ=row.environ,
            of_rank=row.of_rank,
        )
        try:
            return observe(row, job)
        except AssertionError as error:
            return Outcome("-", "", "", 0.0, 0.0, (str(error),))
        finally:
            job.kill()


if __name__ == "__main__":
    sys.exit(main())
