"""Instrumentation by environment variables alone, which never harms the training."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_torchdist.model.kinds import TapeState
from tests.support.launch.jobs import Job, Jobs
from tests.support.launch.quiet import QUIET
from tests.support.native.both_kernels import IN_PYTHON
from tests.support.repository import REPOSITORY
from tests.support.tapes.recorded import read_tapes

WORKERS = Path(__file__).parent / "workers"

RESULT = [1.0, 1.0, 1.0]


def run(jobs: Jobs, environ: Mapping[str, str], code: int = 0) -> Job:
    """Run the plain script, and check that its output and exit code are unchanged."""
    job = jobs.run("plain", 1, str(code), environ={**QUIET, **environ}, codes=[code])
    assert job.ranks[0].line()["result"] == RESULT
    return job


@pytest.mark.parametrize("code", [0, pytest.param(1, marks=pytest.mark.thorough), 3])
def test_switched_on(jobs: Jobs, code: int) -> None:
    """Each default group has a tape, standard error is empty, and the exit code is the script's."""
    job = run(jobs, {}, code)
    assert job.ranks[0].err == ""
    assert [tape.only("all_reduce").has_ended for tape in job.tapes] == [True, True]
    assert {tape.status.state for tape in job.tapes} == {TapeState.FINISHED}


@IN_PYTHON
def test_switched_off(jobs: Jobs) -> None:
    """OpenTelemetry's own switch disables capture silently: no tape and no thread."""
    job = run(jobs, {"OTEL_SDK_DISABLED": "true"})
    assert job.ranks[0].err == ""
    assert job.ranks[0].line()["threads"] == []
    assert job.tapes == []


@IN_PYTHON
def test_directory_that_others_write_to(jobs: Jobs) -> None:
    """A base directory that others can write to is refused with one warning, and training continues."""
    for path in (Path("/dev/shm"), Path("/proc/self")):
        assert stat.S_ISDIR(path.stat().st_mode)
        job = run(jobs, {"OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(path)})
        [warning] = job.ranks[0].err.splitlines()
        assert str(path) in warning
        assert "otel_torchdist is off in this process" in warning
        assert job.tapes == []


def test_full_directory(jobs: Jobs) -> None:
    """Without space for a tape there is one warning and no SIGBUS, and training continues."""
    job = jobs.run("full_directory", 1, environ=QUIET)
    forbidden, result = job.ranks[0].lines()
    if forbidden["forbidden"]:
        pytest.skip(f"a small file system cannot be mounted here: {forbidden['forbidden']}")
    assert result == {"result": RESULT}
    [warning] = job.ranks[0].err.splitlines()
    assert "No space left on device" in warning


def test_opentelemetry_instrument(tmp_path: Path) -> None:
    """`opentelemetry-instrument` switches instrumentation on through the entry point."""
    tapes = tmp_path / "tapes"
    tapes.mkdir(0o700)
    environ = {
        **os.environ,
        **QUIET,
        "OTEL_PYTHON_TORCHDIST_ENABLED": "",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(tapes),
        "OTEL_PYTHON_TORCHDIST_TAPE_ON_DISK": "true",
        "PYTHONPATH": str(REPOSITORY),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "STORE": str(tmp_path / "store"),
    }
    script = [sys.executable, str(WORKERS / "plain.py"), "3"]
    launcher = Path(sys.executable).with_name("opentelemetry-instrument")
    done = subprocess.run([str(launcher), *script], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert [tape.only("all_reduce").has_ended for tape in read_tapes(tapes)] == [True, True]


def test_instrumentor_called_twice(jobs: Jobs) -> None:
    """Switching on and off twice is harmless. Each operation has exactly one span."""
    job = jobs.run("instrumented", environ={**QUIET, "OTEL_PYTHON_TORCHDIST_ENABLED": ""})
    first, second = job.ranks[0].lines()
    assert sorted(first["first"]) == ["all_reduce"] * 4 + ["init_process_group"]
    assert second["second"] == ["all_gather"]
    assert len(job.tapes) == 2
    # Messages of OpenTelemetry itself.
    assert set(job.ranks[0].err.splitlines()) == {
        "Attempting to instrument while already instrumented",
        "Attempting to uninstrument while already uninstrumented",
    }
