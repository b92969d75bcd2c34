"""The dashboards in a program that is strict about Grafana's format, against the Prometheus of a real job."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from deploy.native.stack import Stack
from tests.grafana.queries import DASHBOARDS
from tests.stack.story import Story

UNKNOWN_PANELS: dict[str, list[str]] = {}
"""By dashboard, the panels that grafatui does not know; none at present."""


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
    """Strictly: a warning is an error too, but for panels that are named above."""
    command = [grafatui, "--grafana-json", dashboard, "--validate", "--strict", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert found["panel_count"] > 5
    assert [str(one) for one in found["diagnostics"]] == UNKNOWN_PANELS.get(dashboard.stem, [])
    assert done.returncode == 0


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboard_opens(dashboard: Path, grafatui: Path, stack: Stack, story: Story) -> None:
    """It draws itself in a terminal with the job's data, and says nothing of errors."""
    master, slave = pty.openpty()
    command = [grafatui, "--grafana-json", dashboard, "--prometheus-url", stack.addresses.prometheus]
    variables = [f"--var=run={story.run}", "--var=job=torchdist", "--var=group=.*", "--var=rank=.*"]
    process = subprocess.Popen(
        [*command, *variables, "--var=operation=.*", "--range", "5m"],
        stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    drawn, deadline = b"", time.monotonic() + 8
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            drawn += os.read(master, 65_536)
    alive = process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    os.close(master)
    text = drawn.decode(errors="replace")
    assert alive, text
    title = json.loads(dashboard.read_text())["title"]
    assert any(word in text for word in title.split()), text[-2000:]
    assert "rror" not in text, text[-2000:]
