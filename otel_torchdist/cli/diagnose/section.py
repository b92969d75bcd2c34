"""A part of a diagnosis that one kind of text contributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text


@dataclass(frozen=True, slots=True)
class Section:
    """What texts of one kind say about a job.

    Attributes:
        key: Its name in the JSON document.
        title: Its heading in a report, with the source: `watchdogs' lines in job.log`.
        lines: Its text in a report.
        document: The same as JSON.
        has_problem: Whether it reports a failure.
    """

    key: str
    title: str
    lines: tuple[Text, ...]
    document: Any
    has_problem: bool
