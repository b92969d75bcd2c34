"""A full /dev/shm, as in a container: an error or a counted loss, never a SIGBUS in somebody's training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import REPOSITORY

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened on a file system of one MiB, in a namespace of its own."""
    alone = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    place = tmp_path_factory.mktemp("small")
    probe = [*alone, "mount", "-t", "tmpfs", "tmpfs", str(place)]
    try:
        permitted = subprocess.run(probe, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"a small file system needs unshare: {error}")
    if permitted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {permitted.stderr.strip()}")
    program = [*alone, sys.executable, str(Path(__file__).with_name("full_memory.py")), str(place)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_no_room_for_a_tape(report: dict[str, Any]) -> None:
    """A tape that does not fit is an error that states why, and releases all the space it took."""
    said = report["too_large"]
    assert "cannot create a tape of 2109440 bytes" in said["error"]
    assert "No space left on device" in said["error"]
    assert (said["left"], said["opened"], said["taken"]) == ([], [], 0)


def test_no_room_for_names(report: dict[str, Any]) -> None:
    """Names for which there is no room are `other` and counted; records go on, and later names can be read."""
    said = report["names"]
    assert said["others"] == said["dropped"] > 0
    assert (said["wrong"], said["corrupt"]) == (0, 0)
    assert said["after"] == 20
    assert said["ended"] > 0


def test_leftovers_take_an_eighth(report: dict[str, Any]) -> None:
    """In a small file system the newest leftovers stay within an eighth of it, whatever the setting."""
    assert report["leftovers"]["jobs"] == ["8"]
