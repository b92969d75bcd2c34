"""A full /dev/shm, as in a container: an error or a counted loss, never a SIGBUS in somebody's training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.small_file_system import report_of

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened on a file system of one MiB, in a namespace of its own."""
    return report_of(Path(__file__).with_name("full_memory.py"), tmp_path_factory.mktemp("small"))


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
