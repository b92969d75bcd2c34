"""Files that users ask for: whole or not at all, through links, and never over a file of another program."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_torchdist.system.files.outputs import OutputError, check_output, write_output

MARK = b"ours"


def refusal(path: Path, force: bool = False) -> str:
    """Why a file may not be written; '' if it may."""
    try:
        check_output(path, MARK, force)
    except OutputError as error:
        return str(error)
    return ""


def test_what_may_be_written(tmp_path: Path) -> None:
    """A missing file, an empty one and one of ours may be written, another one with force, which is no directory."""
    path = tmp_path / "file"
    assert refusal(path) == ""
    path.touch()
    assert refusal(path) == ""
    write_output(path, [b"this is ", MARK])
    assert refusal(path) == ""
    path.write_bytes(b"x" * 300 + MARK)
    assert refusal(path) == (
        f"{path}: otel-torchdist has not written it; name another file, or use --force, which replaces it"
    )
    assert refusal(path, force=True) == ""
    assert refusal(tmp_path, force=True) == f"{tmp_path}: it is a directory; name a file"
    assert refusal(tmp_path / "none" / "file") == f"{tmp_path / 'none'}: no such directory"
    assert refusal(path / "file", force=True) == f"{path}: no such directory"


def test_compressed(tmp_path: Path) -> None:
    """A name that ends in .gz has its content compressed, and is known again; a damaged one is not ours."""
    path = tmp_path / "file.gz"
    size = write_output(path, [MARK, b"x" * 10_000])
    assert gzip.decompress(path.read_bytes()) == MARK + b"x" * 10_000
    assert size == path.stat().st_size < 1_000
    assert refusal(path) == ""
    path.write_bytes(b"\x1f\x8bdamaged")
    assert "otel-torchdist has not written it" in refusal(path)


def test_pipes_and_devices_stay(tmp_path: Path) -> None:
    """A pipe or a device, such as /dev/stdout, is refused even with force: it would be replaced by a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    own, other = os.pipe()
    open_pipe = Path(f"/dev/fd/{other}")  # as /dev/stdout in a pipeline: a link that leads to no path
    for path in (pipe, link, open_pipe, Path("/dev/null")):
        assert refusal(path, force=True) == f"{path}: it is not a file that can be replaced; name another one"
    os.close(own)
    os.close(other)


def test_links(tmp_path: Path) -> None:
    """What a link leads to is replaced, the link stays; the directory may be a link, and a link may lead nowhere."""
    places = tmp_path / "places"
    places.mkdir()
    directory = tmp_path / "directory"
    directory.symlink_to(places)
    link = tmp_path / "link"
    link.symlink_to(places / "file")
    for path, content in ((directory / "file", b"one"), (link, b"two")):
        assert refusal(path, force=True) == ""
        write_output(path, [content])
        assert (places / "file").read_bytes() == content
    assert link.is_symlink()
    assert "otel-torchdist has not written it" in refusal(link)


def test_mode(tmp_path: Path) -> None:
    """A file has the mode that any file of the user gets."""
    before = os.umask(0o027)
    try:
        write_output(tmp_path / "file", [b"x"])
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("raised", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failure(tmp_path: Path, raised: BaseException) -> None:
    """If a file cannot be completed, the earlier one is as it was, and nothing unfinished is left."""
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def pieces() -> Iterator[bytes]:
        yield b"a piece"
        raise raised

    with pytest.raises((OutputError, KeyboardInterrupt)) as caught:
        write_output(path, pieces())
    if isinstance(raised, OSError):
        assert str(caught.value) == f"{path}: No space left on device"
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]
