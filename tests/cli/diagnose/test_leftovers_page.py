"""Every command of the page on leftovers, run as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.cli.running import SCRIPT, environment
from tests.flight.made_dumps import late_rank, write
from tests.support.repository import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "leftovers.md"
REAL: Final = REPOSITORY / "tests" / "flight" / "data" / "lock_gil_1st"
_BLOCK: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)
COMMANDS: Final = [line for block in _BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of which the page speaks."""
    shutil.copytree(REAL, tmp_path / "dumps")
    (tmp_path / "dumps" / "fault_injection.log").unlink()
    (tmp_path / "more").mkdir()
    (tmp_path / "dumps" / "_dump_15").rename(tmp_path / "more" / "nccl_trace_rank_15")
    with tarfile.open(tmp_path / "dumps.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "dumps", "dumps")
    write(tmp_path / "gloo", late_rank())
    return tmp_path


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_command(folder: Path, base: Path, command: str) -> None:
    """It does what the page says, and ends with the code of a verdict."""
    environ = {**environment(base), "PATH": f"{SCRIPT.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    printed = done.stdout or (folder / "diagnosis.json").read_text()
    assert "has not entered" in printed or "have not entered" in printed


def test_report_on_the_page() -> None:
    """The report that the page shows is that of these dumps."""
    done = subprocess.run(
        [str(SCRIPT), "diagnose", str(REAL)], capture_output=True, text=True, timeout=60, env={"TZ": "UTC"}, check=False
    )
    shown = PAGE.read_text().partition("held the GIL in native code:\n\n```\n")[2].partition("```")[0]
    assert shown and done.stdout.startswith(shown)
