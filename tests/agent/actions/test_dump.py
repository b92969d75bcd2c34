"""What a bundle of evidence holds, and where it is written."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import stat
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.agent.actions import dump
from otel_torchdist.agent.actions.stalled_run import StalledRun
from otel_torchdist.agent.actions.triggers import StallActions
from otel_torchdist.config import parse_actions
from otel_torchdist.errors import TapeError
from otel_torchdist.tape.reading.reader import TapeReader
from tests.agent.actions.ongoing import TEXT


def members(directory: Path) -> dict[str, bytes]:
    """Members of the only bundle in a directory, by name without the top folder."""
    [path] = directory.glob("*.tar.gz")
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    with tarfile.open(path) as bundle:
        files = {entry.name.partition("/")[2]: bundle.extractfile(entry) for entry in bundle.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_bundle(stall: StalledRun, tape: TapeReader, tmp_path: Path) -> None:
    """A bundle holds the verdict and a tape that no process here has written, but not the secret of the run."""
    (stall.directory / "peers-00.json").write_text("secret")
    (stall.directory / "agent.log").write_text("a line\n")
    said = dump.dump(stall, tmp_path / "new" / "dumps", {})
    assert said.startswith(f"wrote {tmp_path}/new/dumps/torchdist-stall-")
    found = members(tmp_path / "new" / "dumps")
    assert json.loads(found["verdict.json"])["text"] == TEXT
    assert found["job/agent.log"] == b"a line\n"
    assert not any(b"secret" in content for content in found.values())
    copy = tmp_path / tape.path.name
    copy.write_bytes(found[f"job/{tape.path.name}"])
    assert TapeReader(copy).identity == dataclasses.replace(tape.identity, pid_namespace=0)


def test_bundles_are_bounded(stall: StalledRun, tmp_path: Path) -> None:
    """The oldest bundles of this node are removed."""
    directory = tmp_path / "dumps"
    directory.mkdir(mode=0o700)
    for number in range(dump.MAX_BUNDLES + 5):
        (directory / f"torchdist-stall-1999{number:04}-{socket.gethostname()}.tar.gz").touch()
    (directory / "torchdist-stall-19980101-elsewhere.tar.gz").touch()
    dump.dump(stall, directory, {})
    elsewhere, *left = sorted(path.name for path in directory.iterdir())
    assert elsewhere == "torchdist-stall-19980101-elsewhere.tar.gz"
    assert len(left) == dump.MAX_BUNDLES
    assert left[0].startswith("torchdist-stall-19990006-")


def test_directory_that_others_may_write_to(stall: StalledRun, tmp_path: Path) -> None:
    """Such a directory is refused, and nothing is written."""
    directory = tmp_path / "dumps"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(TapeError, match="others may write to it"):
        dump.dump(stall, directory, {})
    assert list(directory.iterdir()) == []


def test_flight_recorder(stall: StalledRun, tmp_path: Path, recorder: Callable[[Path, Path], None]) -> None:
    """NCCL's own thread is asked through its pipe, and its file is awaited."""
    pipe, file = tmp_path / "pipe_0.pipe", tmp_path / "trace_0"
    file.write_text("old")
    os.utime(file, (1, 1))
    recorder(pipe, file)
    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"),
    }
    dump.dump(stall, tmp_path / "dumps", environ)
    assert members(tmp_path / "dumps")["flight-recorder/trace_0"] == b"new"


def test_recorder_that_does_not_listen(stall: StalledRun, tmp_path: Path) -> None:
    """A pipe that no one reads causes no delay; the existing file goes into the bundle."""
    os.mkfifo(tmp_path / "pipe_0.pipe")
    (tmp_path / "trace_0").write_text("old")
    environ = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"),
    }
    began = time.monotonic()
    dump.dump(stall, tmp_path / "dumps", environ)
    assert time.monotonic() - began < dump.RECORDER_S
    assert members(tmp_path / "dumps")["flight-recorder/trace_0"] == b"old"


@pytest.fixture
def recorder() -> Callable[[Path, Path], None]:
    """Starts a stand-in for NCCL's watchdog: it waits for a byte in a pipe, then writes a file."""

    def start(pipe: Path, file: Path) -> None:
        os.mkfifo(pipe)
        reading = os.open(pipe, os.O_RDWR)  # as its own writer: a read waits for a byte, not for another writer

        def watch() -> None:
            os.read(reading, 16)
            file.write_text("new")
            os.close(reading)

        threading.Thread(target=watch, daemon=True).start()

    return start


def test_dump_directory_of_another_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unusable dump directory is reported at startup, not when the stall comes; and nothing is created."""
    actions, good, bad = parse_actions("dump"), tmp_path / "good", tmp_path / "bad"
    StallActions(actions, 0.0, good)
    assert not good.exists()
    bad.mkdir()
    bad.chmod(0o777)
    StallActions([], 0.0, bad)
    assert not caplog.records
    StallActions(actions, 0.0, bad)
    [record] = caplog.records
    assert record.getMessage().startswith("OTEL_PYTHON_TORCHDIST_DUMP_DIR: `dump` cannot write evidence there: ")
    assert f"{bad}: refused" in record.getMessage()
