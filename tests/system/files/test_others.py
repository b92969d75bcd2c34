"""Files that others write: special, endless or foreign files are refused at once, with a reason."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from otel_torchdist.errors import TapeError
from otel_torchdist.node.job.requests.stacks import last_stack, offer_path, stacks_path
from otel_torchdist.node.job.requests.stacks_file import StacksFile, read_stacks
from otel_torchdist.system.files.others import is_gone, is_transient, open_regular, read_part, read_regular, reason
from otel_torchdist.tape.reading.reader import TapeReader
from tests.support.tapes.tapes import WriterProcess, open_descriptors, settled_descriptors

TIB_4 = 1 << 42


def as_link(path: Path) -> None:
    """A link to a device that never ends."""
    path.symlink_to("/dev/zero")


def as_pipe(path: Path) -> None:
    """A named pipe without a writer."""
    os.mkfifo(path)


def as_sparse(path: Path) -> None:
    """A sparse file of four TiB."""
    with path.open("wb") as file:
        file.truncate(TIB_4)


@pytest.mark.parametrize("make", [as_link, as_pipe, as_sparse], ids=lambda make: make.__name__)
def test_what_would_never_end(memory: Path, make: object) -> None:
    """It is refused at once, and no descriptor stays open."""
    assert callable(make)
    path = memory / "file"
    make(path)
    before = settled_descriptors()
    with pytest.raises(OSError, match=r"symbolic|not a regular file|more than 100 bytes"):
        read_regular(path, 100)
    assert open_descriptors() == before


def test_part_of_a_file(memory: Path) -> None:
    """The beginning, or the end, is read, and no more than there is."""
    path = memory / "file"
    path.write_bytes(b"0123456789")
    assert read_regular(path, 10) == b"0123456789"
    assert read_part(path, 3, 2) == b"34"
    assert read_part(path, -4, 100) == b"6789"
    assert read_part(path, -40, 3) == b"012"
    assert read_part(path, 40, 3) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user(memory: Path) -> None:
    """A file in a user's directory must be that user's: a hard link to another's is not read."""
    path = memory / "file"
    path.touch()
    os.chown(path, 12345, 12345)
    os.close(open_regular(path, owner=12345))
    with pytest.raises(OSError, match="belongs to user 12345 and not to user 54321"):
        open_regular(path, owner=54321)


def test_text_of_an_error() -> None:
    """A missing file and an inaccessible process are different errors; for descriptors the error states what helps."""
    gone, full = OSError(errno.ENOENT, "No such file"), OSError(errno.EMFILE, "Too many open files")
    assert is_gone(gone) and not is_transient(gone)
    assert is_transient(full) and not is_gone(full)
    assert not is_gone(OSError(errno.EIO, "")) and is_transient(OSError(errno.EIO, ""))
    assert "ulimit -n" in reason(full)
    assert "ulimit" not in reason(gone)


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"request": "9", "threads": []}', b"\xff"])
def test_stacks_of_other_types(memory: Path, content: bytes) -> None:
    """Endless nesting, or anything else that a rank does not write, is not an answer, and not read a second time."""
    tape = memory / "some.tape"
    stacks_path(tape).write_bytes(content)
    assert read_stacks(tape, 1) is None
    file = StacksFile(tape)
    assert file.read(1) is file.read(1) is None


def test_stacks_that_never_end(memory: Path) -> None:
    """Links and devices are not followed, neither for threads' stacks nor for a signal's."""
    tape = memory / "some.tape"
    for path in (stacks_path(tape), offer_path(tape)):
        path.symlink_to("/dev/zero")
    assert read_stacks(tape, 0) is None
    assert last_stack(offer_path(tape)) == ()


def test_tape_that_is_truncated_while_it_is_read(memory: Path) -> None:
    """A truncated tape is an error like any other damage: a mapping would end this process by SIGBUS."""
    with WriterProcess(memory) as rank:
        rank.send("begin")
        tape = TapeReader(rank.path)
        assert len(tape.poll().entered) == 1
        os.truncate(rank.path, 4096)
        with pytest.raises(TapeError, match="truncated while it was read"):
            tape.poll()
        assert tape.status().step == 0  # the first page is there
        os.truncate(rank.path, 0)
        with pytest.raises(TapeError, match="truncated while it was read"):
            tape.status()
        tape.close()
