"""The page on costs shows what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.results.report import write_json
from benchmarks.results.sections import Goal, Section
from reference import costs

PAGE = """\
before
<!-- Figures of reading from reference/costs.json, by `make docs`: change neither by hand. -->

old

<!-- Until here. -->
between
<!-- Figures of ddp from reference/costs.json, by `make docs`: change neither by hand. -->

not measured again

<!-- Until here. -->
after
"""


def _results(folder: Path) -> Path:
    goal = Goal("a record", 2.0, 1.0, "µs")
    section = Section(
        "reading", "Reading a tape", ("", "µs"), [["poll", "2.0"]], ["A note."], [goal], {"rounds": [2.0]}
    )
    file = folder / "results.json"
    write_json(file, {"cpu": "a processor", "cores": 2}, [section])
    return file


def test_figures_replace_those_of_the_same_section(tmp_path: Path) -> None:
    """A section that was measured has its table and goals in its place; all else stays as it is."""
    kept = tmp_path / "costs.json"
    assert costs.with_figures(PAGE, kept) == PAGE
    costs.keep(_results(tmp_path), kept)
    made = costs.with_figures(PAGE, kept)
    assert "old" not in made
    assert (
        "**Reading a tape**\n\n|  | µs |\n| --- | --- |\n| poll | 2.0 |\n\n- a record: 2 µs, goal at most 1 µs: MISSED"
        in made
    )
    assert [line for line in made.splitlines() if line in ("before", "between", "not measured again", "after")] == [
        "before",
        "between",
        "not measured again",
        "after",
    ]
    assert costs.with_figures(made, kept) == made


def test_every_round_is_not_kept(tmp_path: Path) -> None:
    """Only what the page shows is kept in the repository."""
    kept = tmp_path / "costs.json"
    costs.keep(_results(tmp_path), kept)
    figures = json.loads(kept.read_text())
    assert set(figures) == {"machine", "reading"}
    assert set(figures["reading"]) == {"title", "columns", "rows", "goals"}


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A file that is no result of the benchmarks does not replace the figures."""
    file = tmp_path / "other.json"
    file.write_text('{"reading": {}}')
    with pytest.raises(ValueError, match="not a result file of `make bench`"):
        costs.keep(file)


def test_the_page_has_a_place_for_each_section() -> None:
    """No section of the benchmarks is missing on the page, and none that it names is unknown."""
    page = (costs.KEPT.parents[1] / "docs" / "costs.md").read_text()
    places = [block["name"] for block in costs.BLOCK.finditer(page)]
    assert sorted(places) == sorted(["machine", *benchmarks.SECTIONS])
