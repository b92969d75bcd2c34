"""Runs the benchmarks as `make bench` does."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.native_library import has_compiler
from tests.support.repository import REPOSITORY

TIMEOUT_S = 600
"""A quick run takes a minute on an idle machine, and minutes beside other tests."""

KERNELS = {"Python kernel", *(["native kernel"] if has_compiler() else [])}
"""What is compared; without a compiler there is no native library."""


@dataclass(frozen=True)
class Results:
    """Results of a run.

    Attributes:
        printed: Its output.
        written: Its file.
    """

    printed: str
    written: dict[str, Any]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmarks."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
