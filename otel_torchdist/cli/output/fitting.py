"""Fits a table into the width of a terminal without cutting off a number: text wraps, then columns are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

LEAST_TEXT: Final = 12
"""Columns of text are not made narrower."""
_EDGES: Final = 2


@dataclass(slots=True)
class Column:
    """A column.

    Attributes:
        name: Its heading.
        is_text: Whether it may wrap; else it holds numbers.
        expendable: The higher, the sooner it is left out; 0 for never.
        cells: Its cells.
    """

    name: str
    is_text: bool = False
    expendable: int = 0
    cells: list[Text] = field(default_factory=list[Text])

    @property
    def width(self) -> int:
        """The width that it needs in order not to wrap."""
        return max(cell_len(self.name), *(cell.cell_len for cell in self.cells), 1)

    @property
    def least(self) -> int:
        """The width that it needs at least."""
        return min(self.width, LEAST_TEXT) if self.is_text else self.width


def fitted(columns: Sequence[Column], width: int) -> tuple[Table, list[str]]:
    """Build a table that is at most `width` wide, if that is possible; columns without any number are not shown.

    Returns:
        The table, and the names of columns that were left out for lack of room.
    """
    shown, left_out = [column for column in columns if any(cell.plain for cell in column.cells)], list[str]()
    while _total(column.least for column in shown) > width and any(column.expendable for column in shown):
        worst = max(shown, key=lambda column: column.expendable)
        shown.remove(worst)
        left_out.append(worst.name)
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for column, its_width in zip(shown, _widths(shown, width), strict=True):
        justify = "left" if column.is_text else "right"
        table.add_column(column.name, justify=justify, width=its_width, overflow="fold", no_wrap=not column.is_text)
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    return table, left_out


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """The width of each column: the widest of those with text become narrower first."""
    widths = [column.width for column in columns]
    while _total(widths) > width:
        wrapping = [place for place, column in enumerate(columns) if widths[place] > column.least]
        if not wrapping:
            break
        widths[max(wrapping, key=lambda place: widths[place])] -= 1
    return widths


def _total(widths: Iterable[int]) -> int:
    """The width of a table: a space between two columns, and at both edges."""
    listed = list(widths)
    return sum(listed) + len(listed) - 1 + _EDGES
