"""Files that an agent keeps: only in directories of the user for whom they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.system.files.others import read_regular
from otel_torchdist.system.files.owned import create_anew, directory_facts, make_directory, open_or_create, remove
from otel_torchdist.system.files.owned import replace_at_once as replace

STRANGER, OTHER = 23456, 23457
Write = Callable[[Path], object]
WRITES: dict[str, Write] = {
    "open": open_or_create,
    "create": create_anew,
    "replace": lambda path: replace(path, path.with_name(".new"), b"ours"),
    "remove": remove,
    "directory": lambda path: make_directory(path.with_name("new"), 0o755, OTHER),
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A file in a directory, both of another user."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    path = directory / "file"
    path.write_bytes(b"theirs")
    for one in (directory, path):
        os.chown(one, STRANGER, STRANGER)
    return path


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_directory_of_another_user(theirs: Path, write: Write) -> None:
    """Root writes into no user's directory unless the caller names that user."""
    with pytest.raises(OSError, match=f"its directory belongs to user {STRANGER} and not to user"):
        write(theirs)
    assert [path.read_bytes() for path in theirs.parent.iterdir()] == [b"theirs"]


def test_directory_of_the_named_user(theirs: Path) -> None:
    """What is written for a user is that user's."""
    os.close(open_or_create(theirs.with_name("lock"), STRANGER))
    replace(theirs, theirs.with_name(".new"), b"new", owner=STRANGER)
    make_directory(theirs.with_name("folder"), 0o755, STRANGER)
    assert {path.stat().st_uid for path in theirs.parent.iterdir()} == {STRANGER}
    assert theirs.read_bytes() == b"new"
    remove(theirs, STRANGER)
    assert not theirs.exists()
    assert directory_facts(theirs.parent).st_uid == STRANGER


def test_file_of_ours(theirs: Path, tmp_path: Path) -> None:
    """A file of root's counts as a user's only in that user's directory, where a service made it."""
    ours = theirs.with_name("ours")
    ours.write_bytes(b"ours")
    assert read_regular(ours, 100, STRANGER) == b"ours"
    (tmp_path / "secret").write_bytes(b"secret")
    theirs.parent.rename(tmp_path / "aside")
    theirs.parent.symlink_to(tmp_path)
    with pytest.raises(OSError, match=f"it belongs to user 0 and not to user {STRANGER}"):
        read_regular(theirs.parent / "secret", 100, STRANGER)
