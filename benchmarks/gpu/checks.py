"""The checks, in the order of their importance, and their results. No check begins that does not fit into the time.

Each check is a session of processes that is killed as a whole at its limit: ranks that hang in NCCL outlive the process
that started them, and ignore SIGTERM. Their output goes to a file, because a pipe stays open as long as any of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.native_library import BUILT, has_compiler
from otel_torchdist import environment_variables as env

REPOSITORY: Final = Path(__file__).parents[2]
BACKENDS: Final = ("nccl-legacy", "nccl2")
KERNELS: Final = ("bare", "native", "python")
LIMIT_S: Final = 480.0
LEAST_S: Final = 15.0
"""A check is not begun with less time left."""
END_S: Final = 5.0
"""Seconds between SIGTERM and SIGKILL at the limit of a check. They count as its time."""
NOT_RUN: Final = "not run: the time was up"
PASSED: Final = re.compile(r"\d+ passed(?:, \d+ skipped)?$")
_COUNTS: Final = re.compile(r"\d+ (?:passed|failed|skipped|errors?)")


@dataclass(frozen=True)
class GpuCheck:
    """A check of one backend.

    Attributes:
        name: The row of the table.
        command: Arguments of Python, without the backend.
        limit_s: Most seconds that it may take.
        environ: Additions to the environment.
        takes_backend: Whether the backend is its last argument. Otherwise a variable tells torch what `nccl` means.
        read: Makes a cell of the table from its exit code and output.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    read: Callable[[int, str], str]
    environ: tuple[tuple[str, str], ...] = ()
    takes_backend: bool = False


def summary_of_tests(code: int, output: str) -> str:
    """Return the counts in pytest's last line, and the names of tests that failed."""
    failed = sorted(set(re.findall(r"^(?:FAILED|ERROR) \S*::(\S+)", output, re.MULTILINE)))
    counts = ", ".join(_COUNTS.findall(output.strip().rpartition("\n")[2])) or f"exit {code}"
    return f"{counts}: {', '.join(failed)}" if failed else counts


def times_of(code: int, output: str) -> str:
    """Return the line of JSON with the times of calls, or the exit code and the last line of an error."""
    line = next((line for line in reversed(output.splitlines()) if line.startswith("{") and line.endswith("}")), "")
    return line if code == 0 and line else last_line_of(code or 1, output)


def last_line_of(code: int, output: str) -> str:
    """Return the last line of the output, and the exit code unless it is 0."""
    line = output.strip().rpartition("\n")[2][:120]
    return line if code == 0 else f"exit {code}: {line}"


def has_passed(cell: str) -> bool:
    """Return whether a cell is a success: times of calls, the library's folder, or tests that passed."""
    return cell.startswith(("{", BUILD_DONE)) or PASSED.fullmatch(cell) is not None


BUILD: Final = "native library, built or found"
BUILD_DONE: Final = "in "
_BUILD_PROGRAM: Final = """
import time
begun = time.monotonic()
from benchmarks.native_library import native_cache
native_cache()
print(f"in {time.monotonic() - begun:.0f} s")
"""


def checks() -> Iterator[GpuCheck]:
    """Yield all checks."""
    yield GpuCheck(BUILD, ("-c", _BUILD_PROGRAM), 150.0, last_line_of)
    pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE")
    jobs = "tests/gpu/test_jobs.py"
    for kernel in KERNELS:
        command = ("-m", "benchmarks.gpu.calls")
        yield GpuCheck(f"{CALLS}, {kernel}", command, 45.0, times_of, _environ_of(kernel), takes_backend=True)
    yield GpuCheck("jobs of two ranks, verdicts", (*pytest, jobs, "-k", "verdicts"), 150.0, summary_of_tests)
    for number in (1, 2, 3):
        yield GpuCheck(
            f"a death, with an agent that does not linger, {number} of 3",
            (*pytest, jobs, "-k", "verdicts and dead"),
            60.0,
            summary_of_tests,
        )
    yield GpuCheck("jobs of two ranks, results and spans", (*pytest, jobs, "-k", "results"), 150.0, summary_of_tests)
    for name in ("timing", "training", "numerics", "rescue"):
        yield GpuCheck(f"tests/gpu/test_{name}.py", (*pytest, f"tests/gpu/test_{name}.py"), 90.0, summary_of_tests)


CALLS: Final = "time of a call"


def _environ_of(kernel: str) -> tuple[tuple[str, str], ...]:
    if kernel == "bare":
        return ()
    return (
        (env.OTEL_PYTHON_TORCHDIST_ENABLED, "true"),
        (env.OTEL_PYTHON_TORCHDIST_CAPTURE, kernel),
        (env.OTEL_PYTHON_TORCHDIST_READER, "none"),
    )


def run_all(
    planned: Sequence[GpuCheck],
    limit_s: float = LIMIT_S,
    backends: Sequence[str] = BACKENDS,
    results: dict[str, dict[str, str]] | None = None,
) -> dict[str, dict[str, str]]:
    """Run checks until the time is up. Return the result by check and backend.

    Args:
        planned: The checks.
        limit_s: Most seconds for all checks, the end of the last one included.
        backends: Names of backends.
        results: Where to put the results, for a caller that is interrupted.
    """
    deadline_s = time.monotonic() + limit_s
    results = {} if results is None else results
    for check in planned:
        results[check.name] = dict.fromkeys(backends, NOT_RUN)
    for check in planned:
        for backend in backends:
            left_s = deadline_s - time.monotonic() - END_S
            cell = run(check, backend, min(check.limit_s, left_s)) if left_s >= LEAST_S else NOT_RUN
            results[check.name][backend] = cell
            print(f"{check.name}, {backend}: {cell}", file=sys.stderr, flush=True)
    return results


def run(check: GpuCheck, backend: str, limit_s: float) -> str:
    """Run a check and return its result."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        output = Path(folder) / "output"
        tapes = Path(folder) / "tapes"
        tapes.mkdir()
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *check.command, *((backend,) if check.takes_backend else ())],
                cwd=REPOSITORY,
                env=_environment_of(check, backend, tapes),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not over after {limit_s:.0f} s"
        finally:
            _end_session(process)
        try:
            return check.read(code, output.read_text(errors="replace"))
        except Exception as error:  # the other checks are worth their results
            return f"exit {code}, and its output cannot be read: {error!r}"[:200]


def _environment_of(check: GpuCheck, backend: str, tapes: Path) -> dict[str, str]:
    built = max((BUILT / "native").glob("*/lock"), key=lambda lock: lock.stat().st_mtime, default=None)
    return {
        **os.environ,
        **({"XDG_CACHE_HOME": str(built.parent)} if built is not None and has_compiler() else {}),
        "TORCH_DIST_USE_NCCL2": "1" if backend == "nccl2" else "0",
        env.OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(tapes),
        **dict(check.environ),
    }


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a check, also after its first process has ended."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tables(results: dict[str, dict[str, str]], backends: Sequence[str] = BACKENDS) -> str:
    """Return the results as tables in Markdown, with a row for each kind of call."""
    head = [f"| tested | {' | '.join(backends)} |", "| --- |" + " --- |" * len(backends)]
    rows = [
        f"| {name} | {' | '.join(cells[backend] for backend in backends)} |"
        for name, cells in results.items()
        if not name.startswith(CALLS)
    ]
    return "\n".join([*head, *rows, "", *_table_of_calls(results, backends)])


def _table_of_calls(results: dict[str, dict[str, str]], backends: Sequence[str]) -> Iterator[str]:
    columns = [(f"{CALLS}, {kernel}", backend, kernel) for backend in backends for kernel in KERNELS]
    cells = [results.get(name, {}).get(backend, NOT_RUN) for name, backend, _ in columns]
    times: list[dict[str, float]] = [json.loads(cell) if cell.startswith("{") else {} for cell in cells]
    yield f"| µs | {' | '.join(f'{backend}, {kernel}' for _, backend, kernel in columns)} |"
    yield "| --- |" + " --- |" * len(columns)
    for kind in next((list(found) for found in times if found), []):
        yield f"| {kind} | {' | '.join(str(found.get(kind, '-')) for found in times)} |"
    for cell, (_, backend, kernel) in zip(cells, columns, strict=True):
        if not cell.startswith("{"):
            yield f"\n{backend}, {kernel}: {cell}"
