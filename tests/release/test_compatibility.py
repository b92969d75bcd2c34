"""A complete run of the tests is kept with its versions and counts, a partial one is not, and the page shows it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

from reference.compatibility import Compatibility, Installation, Suite, SuiteRun, add, compatibility_page, read
from tests.support.repository import REPOSITORY

TESTS = """
import pytest


@pytest.mark.process
def test_good():
    pass


@pytest.mark.thorough
@pytest.mark.rare
def test_bad():
    assert False


def test_elsewhere():
    pytest.skip("not here")


@pytest.fixture
def broken():
    raise OSError


def test_broken(broken):
    pass
"""
PLUGIN = """
from pathlib import Path
from tests.support.suite_record import SuiteRecorder


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SuiteRecorder(Path("kept.json")))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a test of each outcome, and with our settings of pytest."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_all.py").write_text(TESTS)
    section = "[tool.pytest.ini_options]\n"
    settings = (REPOSITORY / "pyproject.toml").read_text().split(section)[1].split("\n[")[0]
    (tmp_path / "pyproject.toml").write_text(section + settings)
    (tmp_path / "recording.py").write_text(PLUGIN)
    return tmp_path


def run(project: Path, *arguments: str) -> str:
    """Run the project's tests as `make test RECORD=yes` runs ours; returns the output."""
    environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{project}"}
    command = [sys.executable, "-m", "pytest", "-p", "recording", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_complete_run_is_kept(project: Path, processes: str) -> None:
    """Versions are read from this environment, and each test counts once, in one process or several."""
    out = run(project, "--numprocesses", processes)
    assert "kept in kept.json" in out, out
    [kept] = read(project / "kept.json").suites
    assert (kept.torch, kept.opentelemetry) == (version("torch").partition("+")[0], version("opentelemetry-sdk"))
    assert (kept.python, kept.machine) == (platform.python_version(), platform.machine())
    assert (kept.passed, kept.failed, kept.skipped, kept.backends) == (1, 2, 1, ("gloo",))
    assert (kept.suite, kept.day) == (Suite.WHOLE, date.today())


@pytest.mark.thorough
@pytest.mark.rare
def test_the_usual_suite_is_kept_as_such(project: Path) -> None:
    """Tests that `make test` leaves out are not counted."""
    run(project, "-m", "not thorough")
    [kept] = read(project / "kept.json").suites
    assert (kept.suite, kept.passed, kept.failed) == (Suite.USUAL, 1, 1)


@pytest.mark.thorough
@pytest.mark.rare
@pytest.mark.parametrize(
    "part",
    [
        *(["-k", "good"], ["tests/test_all.py"], ["-m", "process"], ["--deselect=tests/test_all.py::test_bad"]),
        *(["--ignore=tests/test_all.py"], ["--override-ini=testpaths=tests/test_all.py"], ["--collect-only"]),
        *(["-x"], ["--maxfail=1"], ["-x", "--numprocesses=2"]),
    ],
    ids=" ".join,
)
def test_a_part_is_not_kept(project: Path, part: list[str]) -> None:
    """A run of some tests, or that ended early, says nothing about the whole."""
    assert "not kept for docs/compatibility.md" in run(project, *part)
    assert not (project / "kept.json").exists()


@pytest.mark.thorough
@pytest.mark.rare
@pytest.mark.parametrize(
    "broken", ["import absent", "def test_one(): raise KeyboardInterrupt"], ids=["import", "ctrl-c"]
)
def test_an_incomplete_run_is_not_kept(project: Path, broken: str) -> None:
    """A file that cannot be imported, or Ctrl-C, leaves out tests."""
    (project / "tests" / "test_a_first.py").write_text(broken)
    assert "not kept for docs/compatibility.md" in run(project)
    assert not (project / "kept.json").exists()


@pytest.mark.thorough
@pytest.mark.rare
def test_the_suite_asks_for_it(tmp_path: Path) -> None:
    """`make test RECORD=yes` sets a variable, which this suite follows: it says that a single test is not kept."""
    single = "tests/release/test_pythons.py::test_supported"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--quiet", single]
    for kept, said in ((str(tmp_path / "kept.json"), True), ("", False)):
        environ = {**os.environ, "TEST_RECORD": kept}
        done = subprocess.run(command, cwd=REPOSITORY, env=environ, capture_output=True, text=True, check=True)
        assert ("not kept for docs/compatibility.md: this was only a part of a suite" in done.stdout) == said
    assert [*tmp_path.iterdir()] == []


def test_newer_results_replace_older_ones(tmp_path: Path) -> None:
    """One result a combination is kept; the page shows the newest in the matrix, and `not run` elsewhere."""
    kept = tmp_path / "kept.json"
    first = SuiteRun("2.15.0", "3.11.7", "1.45.2", "x86_64", ("gloo",), Suite.USUAL, 9, 1, 2, date(2026, 1, 2))
    second = SuiteRun("2.15.0", "3.11.7", "1.45.2", "x86_64", ("gloo",), Suite.USUAL, 11, 1, 0, date(2026, 1, 3))
    old = SuiteRun("2.8.0", "3.10.1", "1.39.0", "x86_64", ("gloo",), Suite.WHOLE, 20, 0, 1, date(2026, 1, 1))
    bad = Installation("any", "3.12.1", "1.45.2", "", "x86_64", False, date(2026, 1, 1))
    good = Installation("any", "3.12.4", "1.45.2", "", "x86_64", True, date(2026, 1, 2))
    oldest = Installation("any", "3.12.4", "1.39.0", "", "x86_64", True, date(2026, 1, 2))
    for result in (first, bad, old, second, good, oldest):
        add(kept, result)
    assert read(kept) == Compatibility((old, second), (oldest, good))
    page = compatibility_page(kept)
    assert "| 2.15 | not run | passed (usual, 2026-01-03) | not run | not run |" in page
    assert "| 2.8 | 1 failed (whole, 2026-01-01) | not run | not run | not run |" in page
    assert "| 2.8.0 | 3.10.1 | 1.39.0 | x86_64 | gloo | whole | 20 | 0 | 1 | 2026-01-01 |" in page
    assert "| any | - | 3.12.4 | 1.45.2 | x86_64 | yes | 2026-01-02 |" in page
