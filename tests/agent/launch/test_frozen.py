"""A frozen application: it is not started again, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.agent.training import WORKERS, environment
from tests.support.receivers.otlp_receiver import OtlpReceiver


def test_a_frozen_application_exports_by_itself(base: Path, receiver: OtlpReceiver, tmp_path: Path) -> None:
    """The executable is the application, which would train again: a thread exports, with one warning."""
    application, started = tmp_path / "app", tmp_path / "started"
    application.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 60\n")
    application.chmod(0o700)
    command = [sys.executable, WORKERS / "frozen.py", tmp_path / "store", application]
    done = subprocess.run(command, env=environment(base, receiver), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["trained"]), done.stderr  # gloo of torch 2.8 prints
    [warning] = [line for line in done.stderr.splitlines() if "otel_torchdist" in line or "agent" in line]
    assert f"{application} is an application with an embedded Python, so no agent can be started" in warning
    assert not started.exists()
    assert [span.name for span in receiver.spans()].count("all_reduce") == 3
