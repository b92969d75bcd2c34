"""Fits a table into the width of a terminal without cutting off a number: text wraps, then columns are left out."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

LEAST_TEXT: Final = 12
"""Columns of text are not made narrower."""
LONGEST_WORD: Final = 20
"""Longer words are broken where a table would not fit otherwise."""
_EDGES: Final = 2


@dataclass(slots=True)
class FittedColumn:
    """A column.

    Attributes:
        name: Its heading.
        is_text: Whether it may wrap; else it holds numbers.
        expendable: The higher, the sooner it is left out; 0 for never.
        cells: Its cells.
        stays: Whether it is shown even if all of its cells are empty.
        at_least: Its least width.
        wraps_last: Whether it stays as wide as it is as long as other text can wrap.
    """

    name: str
    is_text: bool = False
    expendable: int = 0
    cells: list[Text] = field(default_factory=list[Text])
    stays: bool = False
    at_least: int = 1
    wraps_last: bool = False

    @property
    def width(self) -> int:
        """The width that it needs in order not to wrap."""
        return max(cell_len(self.name), *(cell.cell_len for cell in self.cells), self.at_least)

    @property
    def least(self) -> int:
        """The width that it needs at least, in order not to break a word."""
        words = (len(word) for cell in self.cells for word in cell.plain.split())
        longest = min(LONGEST_WORD, max(words, default=0))
        return min(self.width, max(LEAST_TEXT, longest)) if self.is_text else self.width

    @property
    def cut(self) -> int:
        """The width that it needs at least where text is cut, whatever that is."""
        return max(LEAST_TEXT, self.at_least) if self.is_text else self.width


class Narrowing(enum.Enum):
    """How a table becomes narrower than its cells are."""

    WRAPS = "wraps"
    """Text wraps, before columns are left out."""
    LEAVES_OUT = "leaves out"
    """Columns are left out, before text wraps."""
    CUTS = "cuts"
    """Text is cut: which columns are left out does not depend on it, and no row becomes higher."""

    def needs(self, column: FittedColumn) -> int:
        """Return the width without which columns are left out."""
        match self:
            case Narrowing.WRAPS:
                return column.least
            case Narrowing.LEAVES_OUT:
                return column.width
            case Narrowing.CUTS:
                return column.cut


def fitted(
    columns: Sequence[FittedColumn], width: int, narrowing: Narrowing = Narrowing.WRAPS
) -> tuple[Table, list[str]]:
    """Build a table that is at most `width` wide, if that is possible; columns without any number are not shown.

    Returns:
        The table, and the names of columns that were left out for lack of room.
    """
    shown, left_out = [column for column in columns if column.stays or any(column.cells)], list[str]()
    while _total(narrowing.needs(column) for column in shown) > width:
        worst = max(shown, key=lambda column: column.expendable)
        if not worst.expendable:
            break
        shown.remove(worst)
        left_out.append(worst.name)
    wraps = narrowing is not Narrowing.CUTS
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for column, its_width in zip(shown, _widths(shown, width, wraps), strict=True):
        table.add_column(
            column.name,
            justify="left" if column.is_text else "right",
            width=its_width,
            overflow="fold" if wraps else "ellipsis",
            no_wrap=not (column.is_text and wraps),
        )
    for cells in zip(*(column.cells for column in shown), strict=True):
        table.add_row(*cells)
    return table, left_out


def _widths(columns: Sequence[FittedColumn], width: int, wraps: bool) -> list[int]:
    """The width of each column: the widest of those with text become narrower first."""
    widths = [column.width for column in columns]
    while _total(widths) > width:
        wrapping = [
            place for place, column in enumerate(columns) if widths[place] > (column.least if wraps else column.cut)
        ]
        if not wrapping:
            break
        widths[max(wrapping, key=lambda place: (not columns[place].wraps_last, widths[place]))] -= 1
    return widths


def _total(widths: Iterable[int]) -> int:
    """The width of a table: a space between two columns, and at both edges."""
    listed = list(widths)
    return sum(listed) + len(listed) - 1 + _EDGES
