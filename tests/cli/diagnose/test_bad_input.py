"""`otel-torchdist diagnose` when there is nothing to diagnose, or when part of it is unreadable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.analysis.result import AnalysisSection
from otel_torchdist.formats import TAPE
from otel_torchdist.model.kinds import TapeState
from tests.support.commands.asking import ask
from tests.support.tapes.fake_tape import FakeTape

IDS = (0x11AA << 112, 0x11BB << 112)
JOBS = ("job-000000000000000a", "job-000000000000000b")
BEGIN = Callable[..., list[Path]]


@pytest.fixture
def begin(base: Path) -> Iterator[BEGIN]:
    """Writes the tapes of a finished run and returns their paths."""

    def begin(job: int = 0, ranks: tuple[int, ...] = (0, 1), world_size: int = 2) -> list[Path]:
        directory = base / JOBS[job]
        directory.mkdir(mode=0o700)
        written = [FakeTape(directory, rank, world_size, IDS[job]) for rank in ranks]
        for one in written:
            one.run(at=time.monotonic_ns(), lasts=1000)
            one.writer.finish(TapeState.FINISHED)
            one.close()
        return [one.writer.path for one in written]

    yield begin


@pytest.mark.parametrize(
    "line",
    [
        "diagnose",
        "analyze",
        *(f"analyze --only {part.value}" for part in AnalysisSection),
        "analyze --html out",
        "reproduce",
    ],
)
def test_no_run(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: BEGIN, line: str) -> None:
    """Without a run, or even a directory, every command reports that in one line, and an id that no run has, too."""
    monkeypatch.chdir(tmp_path)
    command, *out = line.split()
    base.rmdir()
    missing = ask(base, *out, command=command)
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == f"otel-torchdist: {base}: no tape that can be read\n"
    assert not base.exists()
    base.mkdir(0o700)
    assert ask(base, *out, command=command) == missing
    begin()
    answer = ask(base, *out, "feed", command=command)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "otel-torchdist: no run begins with feed; `otel-torchdist diagnose --list` lists all runs\n"
    assert list(tmp_path.iterdir()) == []


def test_several_runs(base: Path, begin: BEGIN) -> None:
    """A prefix that two runs share is reported with both of them, by `watch` too."""
    begin(0)
    begin(1)
    for command in ("diagnose", "watch"):
        answer = ask(base, "11", command=command)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err == "otel-torchdist: 2 runs begin with 11: 11bb0000, 11aa0000\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize("is_base", [True, False])
def test_directory_of_another_user(base: Path, begin: BEGIN, is_base: bool) -> None:
    """Tapes of another user are not read."""
    [path, _] = begin()
    refused = base if is_base else path.parent
    os.chown(refused, 65534, 65534)
    arguments = [] if is_base else ["--run-dir", refused]
    for command in ("diagnose", "watch"):
        answer = ask(base, *arguments, command=command)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err == (
            f"otel-torchdist: {refused}: refused for tapes: it belongs to user 65534 and not to user 0\n"
        )


def truncated(path: Path) -> None:
    """Cut off the second half."""
    os.truncate(path, path.stat().st_size // 2)


def corrupt(path: Path) -> None:
    """Flip a bit of the identity."""
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def of_another_version(path: Path) -> None:
    """Claim a future version."""
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(data)


def damaged(path: Path) -> None:
    """Overwrite the live words."""
    data = bytearray(path.read_bytes())
    data[1024:4096] = bytes(3072)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (truncated, "truncated or damaged"),
        (corrupt, "damaged: the identity block"),
        (of_another_version, TAPE.refusal(99)),
        (damaged, "damaged: the run id does not match its checksum"),
    ],
)
def test_tape_that_cannot_be_read(base: Path, begin: BEGIN, spoil: Callable[[Path], None], why: str) -> None:
    """One warning names the file and the reason; the other rank is shown, and this one is called unknown."""
    [_, path] = begin()
    spoil(path)
    answer = ask(base)
    assert answer.code == 0
    assert answer.err.startswith(f"otel-torchdist: warning: {path}: {why}")
    assert answer.err.count("\n") == 1
    assert answer.has(r"run 11aa0000, started .*, 1 of 2 ranks report")
    assert answer.has(r"rank 0  finished .*")
    assert answer.has(r"rank 1  unknown: has no tape on this node")
    document = ask(base, "--json").document
    assert document["coverage"] == {"reporting": [0], "unknown": [1]}
    assert document["warnings"] == [answer.err.removeprefix("otel-torchdist: warning: ").strip()]


def test_half_written_record(base: Path, begin: BEGIN) -> None:
    """A rank that was interrupted in writing a record: a warning, and everything else is shown."""
    [path, _] = begin()
    with path.open("r+b") as file:
        file.seek(12_288 + 128 + 20)
        file.write(b"\xff")
    answer = ask(base)
    assert answer.err == f"otel-torchdist: warning: {path}: 1 of its records are damaged or were never finished\n"
    assert answer.has(r"rank 0  finished .*")
    assert answer.has(r"run 11aa0000, started .*, 2 of 2 ranks report")


def test_ranks_elsewhere(base: Path, begin: BEGIN) -> None:
    """If most ranks of a run are on other nodes, those are called unknown."""
    begin(ranks=(2, 3), world_size=8)
    answer = ask(base)
    assert answer.has(r"run 11aa0000, started .*, 2 of 8 ranks report")
    assert answer.has(r"ranks 0-1,4-7  unknown: have no tape on this node")
