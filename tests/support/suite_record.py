"""Keeps the result of a complete run of the tests for docs/compatibility.md: `make test RECORD=yes`."""

from __future__ import annotations

import platform
from collections import Counter
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from reference.compatibility import Suite, SuiteRun, add

_SUITES: Final = {"": Suite.WHOLE, "not thorough": Suite.USUAL, "thorough": Suite.THOROUGH}
"""Suites by the expression that chooses them by their markers."""
_BACKENDS: Final = {"process": "gloo", "gpu": "nccl"}
"""Backends by the marker of tests that use them."""

_OF_A_PART: Final = (
    *("keyword", "deselect", "ignore", "ignore_glob", "lf", "stepwise"),
    *("collectonly", "setuponly", "setupplan", "override_ini"),
)
"""Options of pytest, by their destination, with which it leaves out tests, or runs none; an ini file's values, too."""


class SuiteRecorder:
    """A plugin that counts results, and keeps them if the run was complete."""

    def __init__(self, kept: Path) -> None:
        """Count from zero.

        Args:
            kept: The file to add the result to.
        """
        self._kept = kept
        self._counts: Counter[str] = Counter()
        self._backends: set[str] = set()
        self._sentence = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: when it is called, or when its setup or teardown fails or skips it."""
        if report.when != "call" and report.passed:
            return
        self._counts[report.outcome] += 1
        if report.passed:
            self._backends |= {backend for marker, backend in _BACKENDS.items() if marker in report.keywords}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Keep the result."""
        suite = suite_of(session.config)
        is_complete = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not session.shouldfail
        if suite is None or not is_complete:
            self._sentence = "not kept for docs/compatibility.md: this was only a part of a suite"
            return
        add(
            self._kept,
            SuiteRun(
                torch=version("torch").partition("+")[0],
                python=platform.python_version(),
                opentelemetry=version("opentelemetry-sdk"),
                machine=platform.machine(),
                backends=tuple(sorted(self._backends)),
                suite=suite,
                passed=self._counts["passed"],
                skipped=self._counts["skipped"],
                failed=self._counts["failed"],
                day=date.today(),
            ),
        )
        self._sentence = f"kept in {self._kept.name}; `make docs` writes docs/compatibility.md"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say whether the result was kept."""
        terminalreporter.write_line(self._sentence)


def suite_of(config: pytest.Config) -> Suite | None:
    """Return the suite that an invocation runs, or None if it is only a part of one."""
    if any(getattr(config.option, name, None) for name in _OF_A_PART):
        return None
    if config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return None
    return _SUITES.get(config.option.markexpr)
