"""The input of the report: tables for people, raw numbers for programs, and goals for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """An upper bound for a figure.

    Attributes:
        text: Description of the figure.
        value: Measured value.
        limit: Upper bound.
        unit: Unit of both; '' for a ratio.
        is_decided: Whether the figure is exact enough for a comparison with the bound.
    """

    text: str
    value: float
    limit: float
    unit: str
    is_decided: bool = True

    @property
    def is_met(self) -> bool | None:
        """Whether the figure is within the bound; None if undecided."""
        return self.value <= self.limit if self.is_decided else None


@dataclass(frozen=True, slots=True)
class Section:
    """The results of one benchmark.

    Attributes:
        key: Its name in the JSON file.
        title: Headline of the table.
        columns: Headers; the first column names the rows.
        rows: Cells as text.
        notes: Explanations of the table, one or two sentences each.
        goals: Goals for its figures.
        data: All measurements, ready for JSON.
    """

    key: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    goals: Sequence[Goal]
    data: Mapping[str, Any]
