"""The dashboards in a program that is strict about Grafana's format, with the Prometheus of a real job."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from deploy.native.stack import Stack
from pictures.screen import photograph
from tests.grafana.queries import DASHBOARDS, panels
from tests.servers.story import Story

UNKNOWN_PANELS: dict[str, list[str]] = {}
"""By dashboard, the panels that grafatui does not support; none at present."""


@pytest.fixture(scope="session")
def grafatui(binaries: Path) -> Path:
    """What `make --directory deploy/native checks` has built."""
    found = binaries / "grafatui"
    if not found.is_file():
        assert not os.environ.get("CI"), "CI builds grafatui with `make --directory deploy/native checks`"
        pytest.skip("`make --directory deploy/native checks` has not built grafatui")
    return found


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_is_valid(dashboard: Path, grafatui: Path) -> None:
    """Strictly: a warning is an error too, except for the panels named above."""
    command = [grafatui, "--grafana-json", dashboard, "--validate", "--strict", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert found["panel_count"] > 5
    assert [str(one) for one in found["diagnostics"]] == UNKNOWN_PANELS.get(dashboard.stem, [])
    assert done.returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_opens(dashboard: Path, grafatui: Path, stack: Stack, story: Story) -> None:
    """A dashboard shows the job's data in a terminal, and all queries are answered; what is over has no data."""
    command = [str(grafatui), "--grafana-json", str(dashboard), "--prometheus-url", stack.addresses.prometheus]
    values = {"run": story.run, "job": "torchdist", "group": ".*", "rank": ".*", "operation": ".*"}
    variables = [f"--var={name}={value}" for name, value in values.items()]
    titles = [panel["title"] for panel in panels(json.loads(dashboard.read_text()))]

    def shows_data(text: str) -> bool:
        return "errors=0" in text and 0 < text.count("No data") < len(titles)

    screen = photograph(
        [*command, *variables, "--range", "10m"],
        {**os.environ, "TERM": "xterm-256color"},
        shows_data,
        deadline_s=20,
        lines=240,
    )
    assert "skipped 0" in " ".join(screen.plain.split())
    assert sum(title[:10] in screen.plain for title in titles) >= min(
        len(titles) // 2, 10
    )  # the screen ends below the others
