"""The page about statistics: its commands work as they stand there, and it has what the code has."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.cli.stats.spreadsheet import COLUMNS
from otel_torchdist.statistics.traffic import bus_factor
from tests.cli.dumps import write_dumps
from tests.cli.gloo_jobs import GlooJobs
from tests.support.commands.running import SCRIPT, environment
from tests.support.pages import commands_of, page

PAGE = page("statistics.md")
COMMANDS = commands_of(PAGE)


@pytest.fixture(scope="module")
def finished(gloo: Callable[..., GlooJobs]) -> None:
    """A run to look at."""
    gloo("is punctual", ranks=4, reader="none").join()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work(finished: None, module_base: Path, tmp_path: Path, command: str) -> None:
    """Each command of the page, in a shell, prints or writes something and exits with 0."""
    write_dumps(tmp_path / "dumps", ranks=4, calls=20, absent=2)
    environ = environment(module_base) | {"PATH": f"{SCRIPT.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = "".join(path.read_text() for path in tmp_path.glob("stats.*"))
    assert "all_reduce" in written + done.stdout or "rank" in done.stdout
    if "--json" in command:
        assert json.loads(written)["schema"] == 1


def test_columns_of_csv() -> None:
    """The page lists the columns of CSV, in their order."""
    [listed] = re.findall(r"```\n(operation, .*?)```", PAGE, re.DOTALL)
    assert tuple(re.findall(r"\w+", listed)) == COLUMNS


def test_factors() -> None:
    """The factors of the page are those of the code, here for 8 ranks."""
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]* \| ([^|]+) \|$", PAGE, re.MULTILINE)
    values = {"2(n-1)/n": 2 * 7 / 8, "(n-1)/n": 7 / 8, "1": 1.0}
    found = {name: values[factor] for names, factor in rows for name in re.findall(r"\w+", names)}
    assert len(found) == 10
    assert {name: bus_factor(name, 8) for name in found} == found
