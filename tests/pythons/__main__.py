"""Command line: `python -m tests.pythons build`, or `run [ARGUMENTS OF PYTEST]`, on every Python that there is.

It needs only the standard library: each interpreter gets a virtual environment with torch and the tests' libraries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.pythons.debian import CHECKOUT, SUITE, Debian, PythonsError
from tests.pythons.interpreters import CACHE, Interpreter, found

SUITES: Final = (
    *("tests/tape", "tests/native", "tests/capture", "tests/test_autoload.py"),
    "tests/jobs/torchrun/test_stall_is_visible.py",
)
"""Tests that depend on the interpreter: the tape, both kernels, all hooks, and a job with its verdict."""
_LIBRARIES: Final = (
    *("hypothesis", "msgspec", "prometheus-client", "py-spy", "pytest", "pytest-timeout"),
    *("numpy", "pytest-xdist", "pyyaml"),
)
_SUMMARY: Final = re.compile(r"^=* ?((?:\d+ \w+(?:, )?)+) in [\d.]+s")


def main() -> int:
    """Build interpreters, or run the suites; return the exit code."""
    command, *arguments = sys.argv[1:] or ["run"]
    if command == "build":
        return _build()
    interpreters, missing = found()
    results = [(one.name, *_run(one, arguments)) for one in interpreters]
    print("\nsuites on each Python:")
    for name, code, summary in results:
        print(f"  {name}: {summary}" + (f" (exit code {code})" if code else ""))
    for line in missing:
        print(f"  skipped {line}")
    return max((code for _, code, _ in results), default=1)


def _build() -> int:
    try:
        debian = Debian(CACHE / SUITE)
        if not debian.is_complete:
            debian.create()
        print(f"Debian's Pythons: {debian.root}")
    except PythonsError as error:
        print(f"pythons: {error}", file=sys.stderr)
        return 1
    return 0


def _run(interpreter: Interpreter, arguments: Sequence[str]) -> tuple[int, str]:
    """Run the suites on one interpreter. Return the exit code, and pytest's summary."""
    print(f"\n--- Python {interpreter.version} ---", flush=True)
    python = str(interpreter.environment / "bin" / "python")
    if code := _prepare(interpreter, python):
        return code, "its environment cannot be installed"
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses=2", "--dist=loadscope"]
    chosen = ["-m", "not thorough", *(arguments or SUITES)]
    command = interpreter.command([python, *options, *chosen])
    summary = ""
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as running:
        for line in running.stdout or ():
            sys.stdout.write(line)
            if found_summary := _SUMMARY.match(line):
                summary = found_summary[1]
    return running.returncode, summary or "no tests were run"


def _prepare(interpreter: Interpreter, python: str) -> int:
    """Install the virtual environment of an interpreter, if its inputs have changed. Return the exit code.

    It belongs to one checkout at a time: ranks and agents of the tests import the package from where it is installed.
    """
    environment = interpreter.environment
    inside = environment if interpreter.debian is None else interpreter.debian.root / environment.relative_to("/")
    stamp = inside / ".installed"
    inputs = [CHECKOUT / name for name in ("pyproject.toml", "constraints.txt")]
    is_newest = stamp.is_file() and all(one.stat().st_mtime <= stamp.stat().st_mtime for one in inputs)
    if is_newest and stamp.read_text() == str(CHECKOUT):
        return 0
    torch = f"torch=={interpreter.torch}" if interpreter.torch else "torch"
    constraints = ["--constraints", "constraints.txt", "--build-constraints", "constraints.txt"]
    options = ["--quiet", "--python", python, *constraints]
    uv = str(environment / "bin" / "uv")
    steps = (
        [interpreter.path, "-m", "venv", str(environment)],
        [python, "-m", "pip", "install", "--quiet", *("--constraint", "constraints.txt"), "uv"],
        [uv, "pip", "install", *options, torch, "--editable", ".[cli]", *_LIBRARIES],
    )
    cache = Path("/var/cache/uv") if interpreter.debian is not None else None
    environ = {**os.environ, "UV_CACHE_DIR": str(cache)} if cache else dict(os.environ)
    for step in steps:
        done = subprocess.run(interpreter.command(step), cwd=CHECKOUT, env=environ, check=False)
        if done.returncode:
            return done.returncode
    stamp.write_text(str(CHECKOUT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
