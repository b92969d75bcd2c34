"""Dashboards conform to Grafana's own types."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from benchmarks.native_library import BUILT
from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.process

PROJECT = Path(__file__).parent / "schema"


@pytest.fixture(scope="module")
def modules() -> Path:
    """The installed packages, in the checkout: one folder for each content of package.json."""
    missing = [tool for tool in ("node", "npm") if shutil.which(tool) is None]
    if missing and os.environ.get("CI"):
        pytest.fail(f"no {' and no '.join(missing)} on this machine")
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} on this machine")
    manifest = PROJECT / "package.json"
    home = BUILT / "node" / hashlib.sha256(manifest.read_bytes()).hexdigest()[:16]
    if not home.exists():
        _install(manifest, home)
    return home / "node_modules"


@pytest.mark.parametrize("folder", ["dashboards", "resources"])
def test_types_fit(folder: str, modules: Path, tmp_path: Path) -> None:
    """No dashboard, in either version of the schema, has a field or value that Grafana does not know, nor lacks one."""
    done = _type_check(REPOSITORY / "grafana" / folder, modules, tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("folder", "right", "wrong"),
    [
        ("dashboards", '"type": "row"', '"type": "row", "hot": true'),
        ("dashboards", '"showValue": "auto"', '"showValue": "often"'),
        ("resources", '"kind": "GridLayoutItem"', '"kind": "GridLayoutItem", "hot": true'),
        ("resources", '"cursorSync": "Crosshair"', '"cursorSync": "Sometimes"'),
    ],
)
def test_errors_are_found(folder: str, right: str, wrong: str, modules: Path, tmp_path: Path) -> None:
    """A field that no type knows is refused, and so is an option's value that does not exist."""
    text = (REPOSITORY / "grafana" / folder / "job-overview.json").read_text(encoding="utf-8")
    assert right in text
    dashboards = tmp_path / "dashboards"
    dashboards.mkdir()
    (dashboards / "wrong.json").write_text(text.replace(right, wrong), encoding="utf-8")
    done = _type_check(dashboards, modules, tmp_path)
    assert done.returncode != 0
    assert "generated/wrong.ts" in done.stdout


def _type_check(dashboards: Path, modules: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    project = shutil.copytree(PROJECT, tmp_path / "project")
    (project / "node_modules").symlink_to(modules)
    generated = _run(["node", "generate.mjs", str(dashboards)], project)
    assert generated.returncode == 0, generated.stderr
    return _run(["node_modules/.bin/tsc", "--project", "tsconfig.json"], project)


def _install(manifest: Path, home: Path) -> None:
    home.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=home.parent))
    try:
        shutil.copy(manifest, unfinished)
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
        done = _run(command, unfinished)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        with contextlib.suppress(OSError):  # another test run has put it there meanwhile
            unfinished.rename(home)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _run(command: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=150)
