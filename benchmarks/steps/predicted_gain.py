"""Compares the gain that the critical path predicts with the actual gain of a step.

Command line: `python -m benchmarks.steps.predicted_gain --pairs 5`.
A job with a late rank runs beside the same job without the delay, so that both have the same share of a busy machine.
The prediction from the first job is compared with the difference of the measured step times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path
from statistics import fmean, median
from typing import Final

from benchmarks.results.machine import describe_machine
from benchmarks.results.report import show, show_machine
from benchmarks.results.sections import Goal, Section
from benchmarks.results.spread import Spread
from otel_torchdist import environment_variables as env
from otel_torchdist.analysis.critical_path.analysis import critical_path_of
from otel_torchdist.analysis.critical_path.critical_path import Cause, CauseKind, CriticalPath
from otel_torchdist.node.job.directory import tapes_in
from otel_torchdist.sources.history.tapes import history_of
from otel_torchdist.tape.reading.reader import TapeReader

DELAY_MS: Final = 5.0
WARM_UP: Final = 5
LIMIT: Final = 0.1
_LIMIT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Size:
    """The extent of the measurement.

    Attributes:
        pairs: Pairs of runs of each job, with and without the delay.
        steps: Steps per run.
    """

    pairs: int
    steps: int


@dataclass(frozen=True, slots=True)
class Pair:
    """The result of a pair of runs; times in milliseconds.

    Attributes:
        is_found: Whether the first cause other than a transfer is the late rank before its line.
        excess_ms: Delay of the rank relative to its peers, according to the path; 0 if not found.
        predicted_ms: Predicted gain of a step without the delay; 0 if not found.
        delayed_ms: Median step with the delay.
        other_ms: Median step without the delay.
    """

    is_found: bool
    excess_ms: float
    predicted_ms: float
    delayed_ms: float
    other_ms: float

    @property
    def actual_ms(self) -> float:
        """Actual gain of a step."""
        return self.delayed_ms - self.other_ms


def measure(size: Size, only: Sequence[str] | None = None) -> Section:
    """Run pairs of jobs.

    Args:
        size: The extent of the measurement.
        only: Names of the jobs; None for all.

    Raises:
        RuntimeError: A job has failed.
    """
    os.environ |= {
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: "none",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    from benchmarks.steps.delayed_rank import JOBS  # imports torch, which reads the environment

    found = {job: [_pair(job, size.steps, nth) for nth in range(size.pairs)] for job in only or JOBS}
    return _section(found, size)


def _pair(job: str, steps: int, nth: int) -> Pair:
    """Run a pair; the two runs take turns in starting first."""
    order = (DELAY_MS, 0.0) if nth % 2 == 0 else (0.0, DELAY_MS)
    with ExitStack() as stack:
        folders = {
            delay_ms: Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm"))
            )
            for delay_ms in order
        }
        ranks = [rank for delay_ms, folder in folders.items() for rank in _started(job, delay_ms, steps, folder)]
        for rank in ranks:
            rank.join(_LIMIT_S)
            if rank.exitcode is None:
                rank.kill()
        if any(rank.exitcode != 0 for rank in ranks):
            raise RuntimeError(f"ranks of the job {job!r} ended with {[rank.exitcode for rank in ranks]}")
        return _compared(job, folders[DELAY_MS], folders[0.0])


def _started(job: str, delay_ms: float, steps: int, folder: Path) -> list[ForkProcess]:
    from benchmarks.steps.delayed_rank import RANKS, train

    os.environ[env.OTEL_PYTHON_TORCHDIST_TAPE_DIR] = str(folder)
    forks = multiprocessing.get_context("fork")  # an import of torch takes each rank seconds of a core
    ranks = [forks.Process(target=train, args=(rank, folder, job, delay_ms / 1e3, steps)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    return ranks


def _compared(job: str, delayed: Path, other: Path) -> Pair:
    from benchmarks.steps.delayed_rank import LATE_RANK, late_line

    path = _path(delayed)
    late = [cause for cause in path.causes if cause.kind is not CauseKind.TRANSFER]
    own = next((cause for cause in late if _is_of(cause, LATE_RANK[job], late_line(job))), None)
    return Pair(
        is_found=own is not None and late[0] == own,
        excess_ms=own.excess_ns / 1e6 if own is not None else 0.0,
        predicted_ms=own.gain_ns / 1e6 if own is not None else 0.0,
        delayed_ms=_step_ms(delayed),
        other_ms=_step_ms(other),
    )


def _is_of(cause: Cause, rank: int, line: int) -> bool:
    site = cause.label.site if cause.label is not None else None
    return cause.ranks == (rank,) and site is not None and site.line == line


def _path(folder: Path) -> CriticalPath:
    with ExitStack() as stack:
        tapes = [
            stack.enter_context(closing(TapeReader(path))) for job in folder.glob("job-*") for path in tapes_in(job)
        ]
        found = critical_path_of(map(history_of, tapes))
    if found is None or not found.has_steps:
        raise RuntimeError(f"{folder}: no steady steps were recorded")
    return found


def _step_ms(folder: Path) -> float:
    """Return the median step, from the median over ranks."""
    return median(median(json.loads(path.read_text())[WARM_UP:]) for path in folder.glob("steps-*.json")) * 1e3


def _section(found: dict[str, list[Pair]], size: Size) -> Section:
    rows = [_row(job, pairs) for job, pairs in found.items()]
    goals = [
        Goal(f"error of the predicted gain, {job}", round(100 * _error(pairs), 1), 100 * LIMIT, "%", _is_exact(pairs))
        for job, pairs in found.items()
    ]
    return Section(
        key="predicted_gain",
        title=f"A delay of {DELAY_MS:.0f} ms on one of four ranks: predicted and actual gain of a step without it",
        columns=("job", "found", "excess of the delay", "step, ms", "predicted, ms", "actual, ms", "error"),
        rows=rows,
        notes=(
            f"Medians of {size.pairs} pairs of runs of {size.steps} steps, with half of the distance of the quartiles.",
            f"The machine's load was {os.getloadavg()[0]:.1f} at the end.",
        ),
        goals=goals,
        data={job: [asdict(pair) | {"actual_ms": pair.actual_ms} for pair in pairs] for job, pairs in found.items()},
    )


def _row(job: str, pairs: list[Pair]) -> list[str]:
    def spread(value: Callable[[Pair], float]) -> str:
        return f"{Spread.of([value(pair) for pair in pairs]):.2f}"

    return [
        job,
        f"{sum(pair.is_found for pair in pairs)} of {len(pairs)}",
        f"{100 * fmean(pair.excess_ms for pair in pairs) / DELAY_MS:.0f}%",
        spread(lambda pair: pair.delayed_ms),
        spread(lambda pair: pair.predicted_ms),
        spread(lambda pair: pair.actual_ms),
        f"{100 * _error(pairs):.1f}%",
    ]


def _error(pairs: list[Pair]) -> float:
    """Return the error of the median prediction relative to the median gain."""
    actual_ms = median(pair.actual_ms for pair in pairs)
    return abs(median(pair.predicted_ms for pair in pairs) - actual_ms) / max(abs(actual_ms), 1e-6)


def _is_exact(pairs: list[Pair]) -> bool:
    """Return whether the actual gain varies by less than the allowed error."""
    actual = Spread.of([pair.actual_ms for pair in pairs])
    return (actual.high - actual.low) / 2 / len(pairs) ** 0.5 <= LIMIT * abs(actual.median)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.predicted_gain", description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="number of pairs of runs of each job, at least two")
    parser.add_argument("--job", action="append", dest="jobs", metavar="NAME", help="run only this job")
    parser.add_argument("--steps", type=int, default=80, help="number of steps per run")
    arguments = parser.parse_args()
    show_machine(describe_machine())
    show(measure(Size(max(arguments.pairs, 2), arguments.steps), arguments.jobs))


if __name__ == "__main__":
    main()
