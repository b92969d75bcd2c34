"""The dashboards' files are what the code generates."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

pytest.importorskip("grafana_foundation_sdk", reason="it needs Python 3.11")


def _check(where: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grafana", "--check"]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60)


def test_files_are_up_to_date() -> None:
    """The code and the generated files agree: neither was changed alone."""
    done = _check(REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_names_what_is_out_of_date(tmp_path: Path) -> None:
    """A changed file, a missing one and one that nothing generates are each reported by name."""
    shutil.copytree(REPOSITORY / "grafana", tmp_path / "grafana")
    dashboards = tmp_path / "grafana" / "dashboards"
    changed, missing, untouched, *_ = sorted(dashboards.glob("*.json"))
    changed.write_text(changed.read_text().replace("30m", "31m"))
    missing.unlink()
    (dashboards / "of-nobody.json").write_text("{}")
    done = _check(tmp_path)
    assert done.returncode == 1
    assert all(name in done.stderr for name in (changed.name, missing.name, "of-nobody.json"))
    assert untouched.name not in done.stderr
