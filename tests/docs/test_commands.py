"""The commands of README, CONTRIBUTING and docs exist, and stand where tests find them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

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

RUN_BY: Final = {
    "advice.md": "tests/docs/test_pages_of_analyses.py",
    "archive.md": "tests/docs/test_pages_of_analyses.py",
    "assistants.md": "tests/cli/mcp/test_page.py",
    "critical-path.md": "tests/docs/test_pages_of_analyses.py",
    "deaths.md": "tests/docs/test_pages_of_analyses.py",
    "flight-recorder.md": "tests/cli/export/test_page.py",
    "graph.md": "tests/docs/test_pages_of_analyses.py",
    "hooks.md": "tests/docs/test_hooks.py",
    "leftovers.md": "tests/docs/test_leftovers.py",
    "logs-and-stacks.md": "tests/docs/test_logs_and_stacks.py",
    "report.md": "tests/docs/test_pages_of_analyses.py",
    "reproduce.md": "tests/docs/test_reproduce.py",
    "statistics.md": "tests/cli/analyze/test_page.py",
    "timeline.md": "tests/cli/export/test_perfetto.py",
}
"""The test that runs the commands in a page's blocks for a shell."""
NOT_RUN: Final = {
    "bundles.md": "reads what a pod has left behind; tests/agent/life/test_outlived.py has such a pod",
    "jaeger.md": "its search needs a newer Jaeger than the module proxy has; tests/servers compares both APIs",
    "kubernetes.md": "needs a cluster and a registry; tests/deploy/kubernetes has an API server and builds the images",
    "numerics.md": "starts eight ranks; tests/docs/test_hooks.py and tests/jobs start such jobs",
    "semantic-conventions.md": "needs OpenTelemetry's Weaver; tests/docs/test_registry.py checks the format",
    "switch-off.md": "changes files of root; tests/jobs/switched_off does so in folders of its own",
    "ray.md": "starts a cluster of Ray; tests/launchers/ray runs the example in one",
    "rollout.md": "lists a cluster's runs; tests/jobs/torchrun/test_configuration_files.py starts such jobs",
    "slurm.md": "needs Slurm; tests/launchers/slurm runs such commands in a cluster of two nodes",
    "running.md": "starts eight ranks on the fixed port; tests/agent does so on free ones",
}
"""Pages whose commands no test runs as they are, with the reason. That they exist is tested on every page."""


@pytest.mark.parametrize("name", RUN_BY)
def test_commands_are_in_blocks_for_a_shell(name: str) -> None:
    """No command stands in another block, where it would not be run, and the test that runs them names the page."""
    text = page(name)
    assert commands_of(text)
    assert commands_elsewhere(text) == []
    assert f'"{name}"' in (REPOSITORY / RUN_BY[name]).read_text()


def test_all_commands_are_run_or_marked() -> None:
    """Each page with commands for a shell has a test that runs them, or a reason why none does."""
    named = {str(path.relative_to(REPOSITORY / "docs")) for path in (REPOSITORY / "docs").rglob("*.md")}
    shown = {name for name in named if commands_of(page(name))}
    assert shown == {*RUN_BY, *NOT_RUN}


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
    folders = [REPOSITORY / name for name in ("deploy", "examples")]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert [path for path in files if installs_from_an_index(path.read_text(errors="replace"))] == []
