"""`make up` and `make down` as a user runs them, on ports of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.native.ports import free_ports, ports_from
from deploy.native.servers import DEPLOY
from otel_torchdist.environment_variables import OTEL_PYTHON_TORCHDIST_TAPE_DIR

PROMISE_S = 60.0


def run(action: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the Makefile calls."""
    command = [sys.executable, "-m", "deploy.native", action]
    return subprocess.run(command, cwd=DEPLOY.parent, env=environment, capture_output=True, text=True, timeout=150)


@pytest.fixture
def environment(binaries: Path, tmp_path: Path, memory: Path) -> dict[str, str]:
    """A cache of its own with the servers that have been built, free ports, and none of this user's other jobs."""
    cache = tmp_path / "cache" / "otel-torchdist"
    cache.mkdir(parents=True)
    (cache / "stack").symlink_to(binaries.parent)
    own = {"XDG_CACHE_HOME": str(cache.parent), OTEL_PYTHON_TORCHDIST_TAPE_DIR: str(memory)}
    return {**os.environ, **own, **free_ports().environment}


@pytest.mark.thorough
def test_up_shows_stall_and_alert_and_down_ends_all(environment: dict[str, str]) -> None:
    """Within a minute the stall is in Jaeger and the alert fires; a second `up` is refused; `down` leaves nothing."""
    began = time.monotonic()
    try:
        shown = run("up", environment)
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert time.monotonic() - began < PROMISE_S
        assert "all_reduce stalls, absent: ranks 2 (4/4 report)" in shown.stdout
        assert "all_reduce (in progress)" in shown.stdout
        assert "rank 2: absent" in shown.stdout
        again = run("up", environment)
        assert (again.returncode, again.stderr) == (1, "it is running already; `make down` ends it\n")
    finally:
        ended = run("down", environment)
    assert (ended.returncode, ended.stdout) == (0, "The stack is down.\n")
    ports_from(environment).check_free()
    assert run("down", environment).stdout == "It was not running.\n"
