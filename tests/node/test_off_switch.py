"""The files that switch recording off."""

from pathlib import Path

import pytest

from otel_torchdist.node.off_switch import OffSwitch


@pytest.fixture
def switch(tmp_path: Path) -> OffSwitch:
    """A switch whose files do not exist."""
    (tmp_path / "tapes").mkdir()
    return OffSwitch(tmp_path / "etc" / "off", tmp_path / "tapes")


def test_no_file(switch: OffSwitch) -> None:
    """Recording is on if there is no file, and if its folder is missing."""
    assert switch.found() is None


def test_file_of_the_node(switch: OffSwitch, tmp_path: Path) -> None:
    """The configured file counts whatever its kind: a mounted file may be a link, and a link may lead nowhere."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "off").symlink_to("..data/off")
    assert switch.found() == tmp_path / "etc" / "off"


def test_file_of_a_user(switch: OffSwitch, tmp_path: Path) -> None:
    """The file in a user's directory counts if it is a regular file; a link may lead to another user's file."""
    own = tmp_path / "tapes" / "off"
    own.symlink_to("/etc/passwd")
    assert switch.found() is None
    own.unlink()
    own.touch()
    assert switch.found() == own
