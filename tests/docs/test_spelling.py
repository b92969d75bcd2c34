"""Common misspellings stand in no page, docstring, comment or text of a command."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.support.repository import REPOSITORY

READ = (
    "*.md",
    "docs",
    "deploy",
    "examples",
    "otel_torchdist",
    "tests",
    "benchmarks",
    "reference",
    "grafana",
    "release",
    "wheels",
    "installation",
)
"""Pages and folders, as patterns; `pyproject.toml` has what is skipped, and the words that are right."""


@pytest.mark.skipif(importlib.util.find_spec("codespell_lib") is None, reason="codespell is not installed")
def test_no_word_is_misspelled() -> None:
    """No file of ours has a word of codespell's list."""
    paths = [str(path.relative_to(REPOSITORY)) for pattern in READ for path in sorted(REPOSITORY.glob(pattern))]
    command = [sys.executable, "-m", "codespell_lib", "--quiet-level", "3", *paths]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
