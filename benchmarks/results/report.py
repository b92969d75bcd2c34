"""Prints sections in the terminal and writes them to a file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.results.sections import Goal, Section

WIDTH: Final = 136
_VERDICTS: Final = {True: "met", False: "MISSED", None: "NOT DECIDED"}


def show_machine(machine: Mapping[str, object]) -> None:
    """Print the description of the machine."""
    print(", ".join(f"{key} {value}" for key, value in machine.items()))


def show(section: Section) -> None:
    """Print a section as a table, with rich if it is installed."""
    if find_spec("rich") is not None:
        _show_rich(section)
    else:
        _show_plain(section)
    for note in section.notes:
        print(textwrap.fill(note, WIDTH, initial_indent="  ", subsequent_indent="  "))
    for goal in section.goals:
        print(f"  {_sentence(goal)}")


def write_json(path: Path, machine: Mapping[str, object], sections: Sequence[Section]) -> None:
    """Write all results.

    Raises:
        OSError: The file cannot be written.
    """
    content: dict[str, Any] = {"machine": dict(machine)}
    for section in sections:
        goals = [{**asdict(goal), "met": goal.is_met, "sentence": _sentence(goal)} for goal in section.goals]
        shown = {"title": section.title, "columns": section.columns, "rows": section.rows, "notes": section.notes}
        content[section.key] = {**section.data, **shown, "goals": goals}
    path.write_text(json.dumps(content, indent=2) + "\n")


def _sentence(goal: Goal) -> str:
    verdict = _VERDICTS[goal.is_met]
    if goal.unit:
        return f"{goal.text}: {goal.value:.3g} {goal.unit}, goal at most {goal.limit:g} {goal.unit}: {verdict}"
    ratio = f"1 / {1 / goal.value:.1f}" if goal.value > 0 else "0"
    return f"{goal.text}: {ratio}, goal at most 1 / {1 / goal.limit:.0f}: {verdict}"


def _show_plain(section: Section) -> None:
    lines = [list(section.columns), *(list(row) for row in section.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(section.columns))]
    print(f"\n{section.title}\n")
    for line in lines:
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join([line[0].ljust(len(first)), *others]))
    print()


def _show_rich(section: Section) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=section.title, title_justify="left", box=SIMPLE_HEAD)
    for number, column in enumerate(section.columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=not number)
    for row in section.rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, WIDTH)  # a long line stays readable, truncated cells do not
    console.print()
    console.print(table)
