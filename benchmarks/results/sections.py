"""The input of the report: a table for people, the numbers behind it for machines, goals for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that must not be exceeded.

    Attributes:
        text: What is bounded.
        value: What was measured.
        limit: The bound.
        unit: Of both; '' for a ratio.
        is_decided: Whether the figure is exact enough to be compared with the bound.
    """

    text: str
    value: float
    limit: float
    unit: str
    is_decided: bool = True

    @property
    def is_met(self) -> bool | None:
        """Whether the figure stays within the bound; None if it is not decided."""
        return self.value <= self.limit if self.is_decided else None


@dataclass(frozen=True, slots=True)
class Section:
    """One benchmark's results.

    Attributes:
        key: Its name in the JSON file.
        title: Headline of the table.
        columns: Headers; the first one is the rows' own name.
        rows: Cells as text.
        notes: How to read the table, one sentence or two each.
        goals: The bounds that were promised.
        data: Everything that was measured, ready for JSON.
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    goals: Sequence[Goal]
    data: Mapping[str, Any]
