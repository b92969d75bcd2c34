"""`make gpu`: its plan, its tables, and what it says without a device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import NO_DEVICE, available_backends
from benchmarks.gpu.checks import (
    BACKENDS,
    CALLS,
    END_S,
    KERNELS,
    LIMIT_S,
    NOT_RUN,
    GpuCheck,
    checks,
    has_passed,
    run_all,
    summary_of_tests,
    tables,
    times_of,
)
from tests.support.repository import REPOSITORY
from tests.support.waiting import until

PRINTS_BACKEND = (
    "-c",
    "import os, sys; print('{\"' + sys.argv[1] + '\": ' + os.environ['TORCH_DIST_USE_NCCL2'] + '.5}')",
)


def test_table_of_real_runs() -> None:
    """Each check runs once per backend, which is its argument and decides what torch's `nccl` means."""
    planned = [GpuCheck(f"{CALLS}, {kernel}", PRINTS_BACKEND, 30.0, times_of, takes_backend=True) for kernel in KERNELS]
    planned.append(GpuCheck("fails", ("-c", "raise SystemExit(3)"), 30.0, summary_of_tests))
    results = run_all(planned)
    assert results["fails"] == dict.fromkeys(BACKENDS, "exit 3")
    assert json.loads(results[f"{CALLS}, native"]["nccl2"]) == {"nccl2": 1.5}
    lines = tables(results).splitlines()
    assert lines[:3] == ["| tested | nccl-legacy | nccl2 |", "| --- | --- | --- |", "| fails | exit 3 | exit 3 |"]
    assert "| nccl-legacy | 0.5 | 0.5 | 0.5 | - | - | - |" in lines


def test_time_is_up() -> None:
    """A check that hangs is ended at its limit; a check for which no time is left is marked so."""
    hangs = GpuCheck("hangs", ("-c", "import time; time.sleep(60)"), 1.0, summary_of_tests)
    assert run_all([hangs], backends=("nccl2",)) == {"hangs": {"nccl2": "not over after 1 s"}}
    assert run_all([hangs], limit_s=1.0) == {"hangs": dict.fromkeys(BACKENDS, NOT_RUN)}
    assert NOT_RUN in tables(run_all([hangs], limit_s=1.0))


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"
child = subprocess.Popen([sys.executable, "-c", program])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
if sys.argv[2] == "hangs":
    time.sleep(300)
print("1 passed in 1s", flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize(("ending", "cell"), [("hangs", "not over after 2 s"), ("leaves a rank behind", "1 passed")])
def test_processes_that_ignore_the_end(tmp_path: Path, ending: str, cell: str) -> None:
    """A check and the ranks that it started are killed although they ignore SIGTERM and hold its output open.

    The next check runs, and the tables have both.
    """
    pids = tmp_path / "pids"
    checked = [
        GpuCheck("stubborn", ("-c", STUBBORN, str(pids), ending), 2.0, summary_of_tests),
        GpuCheck("next", ("-c", "print('3 passed in 0.1s')"), 60.0, summary_of_tests),
    ]
    begun_s = time.monotonic()
    results = run_all(checked, backends=("nccl",))
    assert time.monotonic() - begun_s < 2.0 + END_S + 30.0
    assert results == {"stubborn": {"nccl": cell}, "next": {"nccl": "3 passed"}}
    assert f"| stubborn | {cell} |" in tables(results, ("nccl",))
    until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def is_running(pid: int) -> bool:
    """Return whether a process runs; zombies that nobody has waited for do not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.process
def test_all_checks_hang() -> None:
    """If every check hangs, the whole still ends at its limit, with a table of all checks."""
    hangs = [
        GpuCheck(f"hangs, {number}", ("-c", STUBBORN, os.devnull, "hangs"), 4.0, summary_of_tests)
        for number in range(9)
    ]
    begun_s = time.monotonic()
    results = run_all(hangs, limit_s=32.0)
    assert time.monotonic() - begun_s < 32.0 + 1.0
    cells = [cell for cells in results.values() for cell in cells.values()]
    assert len(cells) == 9 * len(BACKENDS)
    assert set(cells) == {"not over after 4 s", NOT_RUN}


@pytest.mark.process
def test_interrupted(tmp_path: Path) -> None:
    """After SIGTERM the results so far are printed, with a row for each check, and the running check is ended."""
    program = PROGRAM.format(stubborn=STUBBORN, pids=str(tmp_path / "pids"))
    process = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2, 60.0)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert rows[2:5] == ["| first | 2 passed |", f"| hangs | {NOT_RUN} |", f"| last | {NOT_RUN} |"]
    until(lambda: not any(is_running(int(pid)) for pid in (tmp_path / "pids").read_text().split()))


PROGRAM = """
import sys, torch
from benchmarks.gpu import __main__ as command
from benchmarks.gpu.checks import GpuCheck, summary_of_tests
torch.cuda.is_available = lambda: True
torch.cuda.get_device_name = lambda index: "a device"
torch.cuda.device_count = lambda: 1
torch.cuda.nccl.version = lambda: (2, 28, 9)
command.checks = lambda: [
    GpuCheck("first", ("-c", "print('2 passed in 1s')"), 60.0, summary_of_tests),
    GpuCheck("hangs", ("-c", {stubborn!r}, {pids!r}, "hangs"), 60.0, summary_of_tests),
    GpuCheck("last", ("-c", "print('2 passed in 1s')"), 60.0, summary_of_tests),
]
sys.argv = ["gpu"]
sys.exit(command.main())
"""


def test_output_that_cannot_be_read() -> None:
    """A check whose output nobody can make sense of has a cell that says so, and stops no other check."""

    def read(code: int, output: str) -> str:
        raise KeyError(output)

    [cell] = run_all([GpuCheck("odd", ("-c", "print(1)"), 30.0, read)], backends=("nccl",))["odd"].values()
    assert cell.startswith("exit 0, and its output cannot be read: KeyError")


@pytest.mark.parametrize(
    ("known", "checked"),
    [
        (["undefined", "gloo", "nccl", "fake"], ("nccl",)),
        (["gloo", "nccl", "nccl-legacy", "nccl2", "nccl-lazy"], ("nccl-legacy", "nccl2")),
    ],
)
def test_backends_of_this_torch(known: list[str], checked: tuple[str, ...]) -> None:
    """Both backends are checked if this torch has them; before torch 2.15 there is one."""
    assert available_backends(known) == checked


@pytest.mark.parametrize(
    ("cell", "is_success"),
    [
        *(("4 passed", True), ("4 passed, 2 skipped", True), ('{"all_reduce": 3.5}', True), ("in 40 s", True)),
        *(("1 failed, 3 passed: test_verdicts[dead]", False), ("3 skipped", False), (NOT_RUN, False)),
        *(("not over after 45 s", False), ("exit 1: no such backend", False), ("1 passed, 1 error", False)),
    ],
)
def test_successes(cell: str, is_success: bool) -> None:
    """Only tests that passed, times and the library are successes, so that the exit code is 0 for nothing else."""
    assert has_passed(cell) is is_success


def test_plan() -> None:
    """The plan has each check once, the time of calls first, and each test file of tests/gpu."""
    planned = list(checks())
    names = [check.name for check in planned]
    assert len(set(names)) == len(names)
    assert [name for name in names if name.startswith(CALLS)] == names[1:4], "behind the library that they measure"
    files = {argument for check in planned for argument in check.command if argument.startswith("tests/gpu/")}
    assert files == {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests" / "gpu").glob("test_*.py")}
    assert LIMIT_S <= 480


@pytest.mark.parametrize(
    ("output", "cell"),
    [
        ("....\n4 passed in 61.02s (0:01:01)", "4 passed"),
        ("FAILED tests/gpu/test_jobs.py::test_verdicts[dead] - assert\n1 failed, 3 passed in 9s", None),
    ],
)
def test_summary_of_tests(output: str, cell: str | None) -> None:
    """A cell has pytest's counts, and the names of failed tests."""
    assert summary_of_tests(1, output) == (cell or "1 failed, 3 passed: test_verdicts[dead]")


@pytest.mark.process
def test_without_a_device() -> None:
    """Without a device it says so, runs nothing, and fails."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == NO_DEVICE
    assert done.stderr == "no CUDA device: torch.cuda.is_available() is false, so nothing was run\n"
