"""The commands of README, CONTRIBUTING and docs exist, and stand where tests find them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documented import (
    PAGES,
    commands_elsewhere,
    commands_in,
    commands_of,
    installs_from_an_index,
    page,
    problems,
)
from tests.support.repository import REPOSITORY


@pytest.mark.parametrize(
    "name",
    ["flight-recorder.md", "leftovers.md", "logs-and-stacks.md", "reproduce.md", "statistics.md", "timeline.md"],
)
def test_commands_are_in_blocks_for_a_shell(name: str) -> None:
    """No command stands in another block, where it would not be run."""
    text = page(name)
    assert commands_of(text)
    assert commands_elsewhere(text) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_what_a_page_names_exists(path: Path) -> None:
    """Commands and their options, targets of make, modules, files, benchmarks and variables."""
    assert problems(path.read_text()) == []


def test_commands_are_found() -> None:
    """The pages together show every command of ours."""
    named = {words[0] for path in PAGES for words in commands_in(path.read_text()) if words}
    every = page("terminal.md")
    assert {*re.findall(r"^## ([a-z-]+)$", every, re.MULTILINE)} | {"build-native", "demo"} <= named


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("`otel-torchdist staats`", "otel-torchdist has no command staats"),
        ("`otel-torchdist --wrong`", "otel-torchdist has no option --wrong"),
        ("```sh\notel-torchdist analyze --buy a > x\n```", "otel-torchdist analyze --buy a: No such option: --buy"),
        ("```\nA=1 otel-torchdist watch a b # c\n```", "otel-torchdist watch a b: Got unexpected extra argument"),
        ('`make demo ARGS="--faults kill"`', "otel-torchdist demo --faults kill: No such option: --faults"),
        ("`make\ndemos`", "make has no target demos"),
        ("```\nmake test-slow    the slow ones\n```", "make has no target test-slow"),
        ("`make test TORHC=2.8.0`", "make has no variable TORHC"),
        ('`make test ARGS="tests/none -k one"`', "there is no tests/none"),
        ('`make bench ARGS="--only ddp,none"`', "there is no benchmark none"),
        ("`.venv/bin/python -m benchmarks.none`", "there is no module benchmarks.none"),
        ("`python -m reference`", "reference needs what is installed in .venv: write .venv/bin/python"),
        ("`.venv/bin/python -m pytest tests/none.py`", "there is no tests/none.py"),
        ("`pip install 'otel-torchdist[cli]'`", "no index has otel-torchdist: pip install 'otel-torchdist[cli]'"),
        ("`--request-dump`", "no program here has an option --request-dump"),
        ("`diagnose --lists`", "no program here has an option --lists"),
        ("`OTEL_PYTHON_TORCHDIST_ENABLE=true`", "nothing here reads a variable OTEL_PYTHON_TORCHDIST_ENABLE"),
        ("```\nexport TORCH_FR_BUFFER=1\n```", "nothing here reads a variable TORCH_FR_BUFFER"),
    ],
)
def test_mistakes_are_found(code: str, problem: str) -> None:
    """Each kind of mistake is found, in sentences and in blocks, and is the only one."""
    [found] = problems(f"\n{code}\n")
    assert found.startswith(problem)


def test_no_file_installs_from_an_index() -> None:
    """Nor do the comments of files that users copy."""
    files = [path for path in (REPOSITORY / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert [path for path in files if installs_from_an_index(path.read_text(errors="replace"))] == []
