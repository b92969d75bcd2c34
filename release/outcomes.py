"""The results of a release's checks."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from reference.pages import table


class Result(enum.Enum):
    """The result of one check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Outcome:
    """One check of one file.

    Attributes:
        check: The check, such as `install on Python 3.12`.
        subject: Name of the checked file; of all files together '*'.
        result: Its result.
        detail: The measured fact, or the reason of a failure; one line.
    """

    check: str
    subject: str
    result: Result
    detail: str = ""

    @property
    def line(self) -> str:
        """The outcome as a line of a terminal."""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.result.value:<8} {self.check}, {self.subject}{detail}"


def outcome(check: str, subject: str, trouble: str, detail: str = "") -> Outcome:
    """Return a check that has passed if there is no trouble."""
    return Outcome(check, subject, Result.FAILED if trouble else Result.PASSED, trouble or detail)


def outcomes_table(outcomes: Iterable[Outcome]) -> str:
    """Return the checks as a table in Markdown."""
    rows = [[one.check, f"`{one.subject}`", one.result.value, one.detail] for one in outcomes]
    return table(["check", "file", "result", "detail"], rows)


def last_line(text: str) -> str:
    """Return the last line of a program's output that has text; '' if it has none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
