"""The pages on the architecture, and CONTRIBUTING, name rooms, files and layers that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.documented import PAGES as ALL_PAGES
from tests.support.documented import page
from tests.support.repository import REPOSITORY

PACKAGE: Final = REPOSITORY / "otel_torchdist"
PAGES: Final = (
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "docs" / "architecture.md",
    *sorted((REPOSITORY / "docs" / "architecture").glob("*.md")),
)
FOREIGN: Final = frozenset({"doc/PERFORMANCE.md", "rpc/api.py", "sysexits.h"})
"""Files of nccl-tests, torch and libc."""
_FILE: Final = re.compile(r"[\w.-]+(?:/[\w.-]+)*")
_ENDINGS: Final = (".py", ".cc", ".h", ".js", ".css", ".html", ".md", ".yaml", ".toml")


def _rooms() -> list[str]:
    """The folders of the package, without what Python leaves there."""
    return sorted(folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists())


def _layers() -> list[list[str]]:
    """The layers of the first contract in pyproject.toml, from top to bottom."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    contract = re.search(r'id = "layers".*?layers = \[\n(.*?)\n\]', text, re.DOTALL)
    assert contract is not None
    rows: list[str] = re.findall(r'"(.+)"', contract[1])
    return [[name.strip().removeprefix("otel_torchdist.") for name in row.split("|")] for row in rows]


def _listed_rooms() -> list[tuple[str, str]]:
    """The names and pages in the table of rooms."""
    return re.findall(r"^\| \[`(\w+)`\]\(architecture/(\w+)\.md\) \|", page("architecture.md"), re.MULTILINE)


def test_all_rooms_are_listed() -> None:
    """The table has a row for each folder of the package, each with a page of the same name."""
    listed = _listed_rooms()
    assert sorted(name for name, _ in listed) == _rooms()
    assert all(name == page_name for name, page_name in listed)


def test_rooms_stand_in_the_order_of_the_layers() -> None:
    """A room imports only rooms above it in the table: the contract's layers, from the bottom up."""
    height = {name: index for index, row in enumerate(reversed(_layers())) for name in row}
    heights = [height[name] for name, _ in _listed_rooms()]
    assert heights == sorted(heights)


def test_every_page_is_reachable() -> None:
    """Each page of the folder is linked from architecture.md."""
    linked = set(re.findall(r"\(architecture/(\w+\.md)", page("architecture.md")))
    assert linked == {path.name for path in (REPOSITORY / "docs" / "architecture").glob("*.md")}


@pytest.mark.parametrize("room", [name for name, _ in _listed_rooms()])
def test_pages_of_rooms_have_the_same_parts(room: str) -> None:
    """Each says which files to open first, how data enters and leaves, and what to beware of."""
    text = page(f"architecture/{room}.md")
    opening = text.partition("**Open first:**")[2].partition("\n\n")[0]
    assert len(list(_named_files(opening))) >= 2
    assert re.search(r"\*\*Data enters", text)
    assert "\n## Traps\n" in text


def test_page_fits_a_screen() -> None:
    """The page is an overview; details belong on the pages of rooms."""
    assert len(page("architecture.md").splitlines()) <= 80


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_named_files_exist(path: Path) -> None:
    """Each path in backticks is a file or folder of the repository, of the package, or of the page's room."""
    assert [name for name in _named_files(path.read_text()) if not _exists(name, path.stem)] == []


def test_files_of_the_repository_exist() -> None:
    """On every page, a path in backticks that begins with a folder of the repository leads somewhere."""
    folders = {path.name for path in REPOSITORY.iterdir() if path.is_dir()}
    missing = [
        f"{path.name}: {name}"
        for path in ALL_PAGES
        for name in _named_files(path.read_text())
        if "/" in name and name.partition("/")[0] in folders and not _exists(name, "")
    ]
    assert missing == []


@pytest.mark.parametrize("heading", ["A collective, from call to span", "A stall, from tape to alert"])
def test_walks_are_short(heading: str) -> None:
    """Each walk opens at most 25 files, numbered, none of them twice."""
    walk = page("architecture/walks.md").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^(\d+)\. `([^`]+)`", walk, re.MULTILINE)
    assert [int(number) for number, _ in steps] == list(range(1, len(steps) + 1))
    assert 1 < len({file for _, file in steps}) == len(steps) <= 25


def _named_files(text: str) -> Iterator[str]:
    """Find names in backticks that look like files: with a slash, or with the ending of a source file."""
    for code in re.findall(
        r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    ):
        for word in [code] if " " not in code else []:
            if _FILE.fullmatch(word) and ("/" in word or word.endswith(_ENDINGS)) and word not in FOREIGN:
                yield word


def _exists(name: str, room: str) -> bool:
    folders = (REPOSITORY, PACKAGE, PACKAGE / room)
    return any((folder / name).exists() or (folder / f"{name}.py").exists() for folder in folders)
