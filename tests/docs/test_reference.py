"""The reference pages say what the code says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from otel_torchdist import environment_variables
from otel_torchdist.telemetry.metrics.definitions import NUMBER_METRICS
from otel_torchdist.telemetry.metrics.definitions.operations import HISTOGRAM_METRICS
from tests.support.repository import REPOSITORY

DOCS = REPOSITORY / "docs"


def _check(where: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reference", "--check"]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60)


def test_pages_are_up_to_date() -> None:
    """No page was changed by hand, and no setting, metric, attribute or alert without its page."""
    done = _check(REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_names_what_is_out_of_date(tmp_path: Path) -> None:
    """A page that was changed, one that is missing, and a copy without an original are named; the others are not."""
    copied = ("deploy/prometheus/rules", "deploy/helm", "grafana/dashboards")
    for folder in ("docs", "reference", "otel_torchdist", *copied, "wheels"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    changed, missing = tmp_path / "docs" / "settings.md", tmp_path / "docs" / "metrics.md"
    changed.write_text(changed.read_text().replace("10000", "20000"))
    missing.unlink()
    stale = tmp_path / "deploy" / "helm" / "otel-torchdist" / "files" / "rules" / "removed.yaml"
    stale.touch()
    done = _check(tmp_path)
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stderr.splitlines()] == [str(changed), str(missing), str(stale)]


def test_every_setting_and_metric_is_described() -> None:
    """Each setting has a heading, a meaning and a default; each metric a row with a meaning."""
    settings = (DOCS / "settings.md").read_text()
    ours = {name for name in vars(environment_variables) if name.startswith("OTEL_")} - {
        environment_variables.OTEL_PYTHON_TORCHDIST_RAISE_INTERNAL
    }
    found = re.findall(r"^### `(\w+)`\n\n(\S(?:.|\n(?!### ))*?)\n\nDefault: (\S.*)$", settings, re.MULTILINE)
    assert {name for name, _, _ in found} == ours
    metrics = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| `[\w]+\.[\w.]+` \| (\S.*) \|$", metrics, re.MULTILINE)
    assert {name for name, _ in rows} == {one.name for one in (*NUMBER_METRICS, *HISTOGRAM_METRICS)}


def test_links_lead_somewhere() -> None:
    """Each relative link of README, CONTRIBUTING, CHANGELOG, deploy and docs leads to a file, and to its heading."""
    for page in (*REPOSITORY.glob("*.md"), REPOSITORY / "deploy" / "README.md", *sorted(DOCS.rglob("*.md"))):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith("http"):
                continue
            path, _, heading = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            assert file.exists(), f"{page.name}: {target}"
            if heading:
                assert heading in _headings(file.read_text()), f"{page.name}: {target}"


def _headings(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = [line.lstrip("# ").lower() for line in text.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}
