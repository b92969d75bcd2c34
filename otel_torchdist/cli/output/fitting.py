"""Fits a table into the width of a terminal without truncating numbers: text wraps, then columns are left out."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

MIN_TEXT: Final = 12
"""Minimum width of a text column, in characters."""
LONGEST_WORD: Final = 20
"""Longer words may be broken if a table would not fit otherwise."""
_EDGE_CHARACTERS: Final = 2


@dataclass(slots=True)
class FittedColumn:
    """A column of a table.

    Attributes:
        name: Heading.
        is_text: True if cells may wrap; False for numbers.
        expendable: Columns with higher values are left out first; 0 for never.
        shown_if_empty: Whether the column is shown if all of its cells are empty.
        min_width: Minimum width.
        wraps_last: Whether the column keeps its width while other text can still wrap.
    """

    name: str
    is_text: bool = False
    expendable: int = 0
    cells: list[Text] = field(default_factory=list[Text])
    shown_if_empty: bool = False
    min_width: int = 1
    wraps_last: bool = False

    @property
    def width(self) -> int:
        """Width without wrapping."""
        return max(cell_len(self.name), *(cell.cell_len for cell in self.cells), self.min_width)

    @property
    def wrapped_width(self) -> int:
        """Minimum width without breaking words of up to `LONGEST_WORD` characters."""
        words = (len(word) for cell in self.cells for word in cell.plain.split())
        longest = min(LONGEST_WORD, max(words, default=0))
        return min(self.width, max(MIN_TEXT, longest)) if self.is_text else self.width

    @property
    def cut_width(self) -> int:
        """Minimum width if text is cut. Does not depend on the text."""
        return max(MIN_TEXT, self.min_width) if self.is_text else self.width


class Narrowing(enum.Enum):
    """The way in which a table becomes narrower than its cells."""

    WRAPS = "wraps"
    """Text wraps before columns are left out."""
    LEAVES_OUT = "leaves out"
    """Columns are left out before text wraps."""
    CUTS = "cuts"
    """Text is cut. The remaining columns do not depend on the text, and every row is one line high."""

    def needs(self, column: FittedColumn) -> int:
        """Return the width below which columns are left out."""
        match self:
            case Narrowing.WRAPS:
                return column.wrapped_width
            case Narrowing.LEAVES_OUT:
                return column.width
            case Narrowing.CUTS:
                return column.cut_width


def fitted(
    columns: Sequence[FittedColumn], width: int, narrowing: Narrowing = Narrowing.WRAPS
) -> tuple[Table, list[str]]:
    """Build a table of at most `width` characters if possible. Columns of numbers without a value are not shown.

    Returns:
        The table, and the names of columns left out for lack of room.
    """
    shown, left_out = [column for column in columns if column.shown_if_empty or any(column.cells)], list[str]()
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
    """Return the width of each column. The widest text columns shrink first."""
    widths = [column.width for column in columns]
    while _total(widths) > width:
        shrinkable = [
            index
            for index, column in enumerate(columns)
            if widths[index] > (column.wrapped_width if wraps else column.cut_width)
        ]
        if not shrinkable:
            break
        widths[max(shrinkable, key=lambda index: (not columns[index].wraps_last, widths[index]))] -= 1
    return widths


def _total(widths: Iterable[int]) -> int:
    """Return the width of a table, with a space between two columns and at both edges."""
    listed = list(widths)
    return sum(listed) + len(listed) - 1 + _EDGE_CHARACTERS
