"""Programs in a mount namespace of their own, where they mount a small file system."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import REPOSITORY


def report_of(program: Path, place: Path) -> dict[str, Any]:
    """Run a program that mounts on a directory, its argument; return the JSON it prints. Skip where it must not."""
    alone = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    try:
        subprocess.run([*alone, "mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small file system cannot be mounted here: {getattr(error, 'stderr', '') or error}")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [*alone, sys.executable, program, place]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
