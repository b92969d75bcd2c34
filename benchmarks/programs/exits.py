"""Counts how ranks end that exit with operations in flight: without recording, and with each kernel.

Command line: `python -m benchmarks.programs.exits --exits 600 --minutes 30`. It is not part of `make bench`, because it
takes long. Torch itself sometimes ends such a process with a signal; this must not be more frequent with recording.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from benchmarks.native_library import MISSING, native_cache
from benchmarks.results.machine import describe_machine
from benchmarks.results.recorded import operations_on_tapes
from benchmarks.results.report import show, show_machine
from benchmarks.results.sections import Section
from otel_torchdist import environment_variables as env
from otel_torchdist.node.job.directory import job_directories

RANKS: Final = 2
NOT_RUN: Final = "not run"
"""Outcome of a rank that could not issue its operations, because the machine was too busy."""

NOTES: Final = (
    "Two ranks on gloo issue 8 to 47 all_reduces of up to 65,535 floats and return from their program, without waiting "
    "and without ending the group; half of them keep their Works in a global variable. Sizes and delays are the same "
    "for all kinds. No agent.",
    "Each rank is forked from the main module of an interpreter that has imported torch, and ends as every interpreter "
    "does: exit handlers, threads, modules, destructors of C++.",
)


class Kind(Enum):
    """Variants of recording; the value is the name in the report."""

    BARE = "bare"
    PYTHON = "Python kernel"
    NATIVE = "native kernel"


@dataclass(slots=True)
class Ends:
    """The ends of the ranks of one kind.

    Attributes:
        outcomes: Number of ranks by outcome.
        in_flight: Number of ranks with operations in flight at the end of their program.
        texts: Last output of ranks with an exit status other than 0.
    """

    outcomes: Counter[str] = field(default_factory=Counter[str])
    in_flight: int = 0
    texts: Counter[str] = field(default_factory=Counter[str])


def measure(exits: int, minutes: float) -> Section:
    """Let ranks exit, alternating between no recording and each kernel.

    Args:
        exits: Number of exits of each kind.
        minutes: Minutes after which no more ranks are started.

    Raises:
        RuntimeError: Operations were not recorded.
    """
    cache = native_cache()
    kinds = [kind for kind in Kind if cache is not None or kind is not Kind.NATIVE]
    found = {kind: Ends() for kind in kinds}
    deadline = time.monotonic() + 60 * minutes
    with _warm_interpreter() as python:
        for seed in range(0, 1000 * (-(-exits // RANKS)), 1000):
            if time.monotonic() > deadline:
                break
            for kind in kinds:
                _let_exit(python, kind, cache, seed, found[kind])
    return _section(found, [] if cache is not None else [MISSING])


@contextmanager
def _warm_interpreter() -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-m", "benchmarks.programs.exiting_ranks"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _let_exit(python: subprocess.Popen[str], kind: Kind, cache: Path | None, seed: int, ends: Ends) -> None:
    with tempfile.TemporaryDirectory(prefix="otel-torchdist-bench-", dir="/dev/shm") as name:
        folder = Path(name)
        order = {"folder": name, "ranks": RANKS, "seed": seed, "settings": _settings(kind, cache, folder / "tapes")}
        assert python.stdin is not None and python.stdout is not None
        python.stdin.write(json.dumps(order) + "\n")
        python.stdin.flush()
        codes = json.loads(python.stdout.readline())
        issued = []
        for rank, code in enumerate(codes):
            noted = folder / f"issued-{rank}"
            if not noted.exists():
                ends.outcomes[NOT_RUN] += 1
                ends.texts[_last_line(folder / f"stderr-{rank}")] += 1
                continue
            made, in_flight = map(int, noted.read_text().split())
            issued.append(made)
            ends.in_flight += in_flight > 0
            ends.outcomes[_named(code)] += 1
            if code:
                ends.texts[_last_line(folder / f"stderr-{rank}")] += 1
        if len(issued) == len(codes):
            _check(kind, folder / "tapes", issued)


def _settings(kind: Kind, cache: Path | None, tapes: Path) -> dict[str, str]:
    if kind is Kind.BARE:
        return {}
    settings = {
        env.OTEL_PYTHON_TORCHDIST_ENABLED: "true",
        env.OTEL_PYTHON_TORCHDIST_READER: "none",
        env.OTEL_PYTHON_TORCHDIST_CAPTURE: "native" if kind is Kind.NATIVE else "python",
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
    }
    return settings | ({"XDG_CACHE_HOME": str(cache)} if kind is Kind.NATIVE else {})


def _check(kind: Kind, tapes: Path, issued: list[int]) -> None:
    found = [count for job in job_directories(tapes) for count in operations_on_tapes(job)]
    expected = issued if kind is not Kind.BARE else []
    if sorted(found) != sorted(expected):
        raise RuntimeError(f"{kind.value}: {found} of {expected} operations were recorded")


def _named(code: int) -> str:
    return f"exit {code}" if code >= 0 else signal.Signals(-code).name


def _last_line(file: Path) -> str:
    lines = file.read_text(errors="replace").strip().splitlines()
    return next((line.strip() for line in lines if "what()" in line or "rror" in line), lines[-1] if lines else "")


def _section(found: Mapping[Kind, Ends], notes: list[str]) -> Section:
    outcomes = sorted({outcome for ends in found.values() for outcome in ends.outcomes})
    return Section(
        key="exits",
        title="How ranks end that exit with operations in flight (gloo, 2 ranks)",
        columns=["", "exits", "with operations in flight", *outcomes],
        rows=[
            [
                kind.value,
                f"{ends.outcomes.total():,}",
                f"{ends.in_flight:,}",
                *(f"{ends.outcomes[outcome]:,}" for outcome in outcomes),
            ]
            for kind, ends in found.items()
        ],
        notes=[
            *NOTES,
            *notes,
            *(f"{kind.value}, {n} times: {text}" for kind, ends in found.items() for text, n in ends.texts.items()),
        ],
        goals=[],
        data={
            kind.name.lower(): {
                "outcomes": dict(ends.outcomes),
                "in_flight": ends.in_flight,
                "texts": dict(ends.texts),
            }
            for kind, ends in found.items()
        },
    )


def main() -> None:
    """Count the outcomes, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.exits", description=__doc__)
    parser.add_argument("--exits", type=int, default=600, help="number of exits of each kind (default: 600)")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no more ranks after this time (default: 60)")
    arguments = parser.parse_args()
    show_machine(describe_machine())
    show(measure(arguments.exits, arguments.minutes))


if __name__ == "__main__":
    main()
