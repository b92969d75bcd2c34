"""Hostile files in a user's directories, and numbers in a user's tapes, affect no other job of an agent."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.job import AgentError, Job
from otel_torchdist.agent.node import NodeWatch
from otel_torchdist.agent.reading.reader import Reader
from otel_torchdist.model.kinds import How, RecordKind, RunIdState
from otel_torchdist.node.job.directory import READER_LOCK_NAME
from otel_torchdist.node.job.requests.stacks import stacks_path
from otel_torchdist.node.job.tapes import MAX_WARNINGS, LocalTapes
from otel_torchdist.show.serving.scrape_target import FOLDER, ScrapeTarget
from otel_torchdist.system.files import owned as owned_files
from otel_torchdist.tape.identity import decode_identity, encode_identity, identify
from otel_torchdist.tape.layout import IDENTITY_SIZE
from otel_torchdist.tape.writer import TapeWriter
from tests.agent.conftest import JOB, give_away
from tests.agent.training import page_of
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.receivers.otlp_receiver import OtlpReceiver
from tests.support.waiting import until

THEIR_JOB = "job-00000000000000ee"
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def begin_theirs(base: Path) -> Iterator[Callable[[int], Ranks]]:
    """Begins a job of another user."""
    jobs: list[Ranks] = []

    def begin(size: int) -> Ranks:
        jobs.append(Ranks(base / THEIR_JOB, size))
        give_away(base / THEIR_JOB)
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def link_the_stacks(directory: Path) -> None:
    """Make the stacks file endless."""
    for tape in directory.glob("*.tape"):
        stacks_path(tape).symlink_to("/dev/zero")


def nest_the_stacks(directory: Path) -> None:
    """Nest the stacks without end."""
    for tape in directory.glob("*.tape"):
        stacks_path(tape).write_text("[" * 200_000)


def pipe_the_names(directory: Path) -> None:
    """Replace the dictionary by a pipe that waits for its other end."""
    for tape in directory.glob("*.tape"):
        names = tape.with_suffix(".names")
        names.unlink(missing_ok=True)
        os.mkfifo(names)


def spoil_the_names(directory: Path) -> None:
    """Write a group without ranks."""
    for tape in directory.glob("*.tape"):
        group = {"name": "0", "description": "", "ranks": None, "nth": 0, "backend": "gloo", "aligned": True}
        text = json.dumps({"id": 1, "group": group}).encode()
        names = tape.with_suffix(".names")
        names.unlink()
        names.write_bytes(b"%08x %s\n" % (zlib.crc32(text), text))


def swell_the_checkpoint(directory: Path) -> None:
    """Make the checkpoint a sparse file of four TiB."""
    with (directory / "agent.checkpoint").open("wb") as file:
        file.truncate(1 << 42)


def pipe_the_target(directory: Path) -> None:
    """Replace the scrape target by a pipe that waits for its other end."""
    (directory.parent / FOLDER).mkdir(exist_ok=True)
    target = directory.parent / FOLDER / f"{directory.name}.json"
    target.unlink(missing_ok=True)
    os.mkfifo(target)


def forge(template: Path, path: Path) -> None:
    """Write a tape like another one, with a run of its own."""
    content = bytearray(template.read_bytes())
    identity = dataclasses.replace(decode_identity(bytes(content), ""), nonce=int(path.stem, 16))
    content[:IDENTITY_SIZE] = encode_identity(identity)
    path.write_bytes(content)


@only_root
def test_beside_a_hostile_user(
    begin: Callable[..., Ranks],
    begin_theirs: Callable[[int], Ranks],
    start: Callable[..., Running],
    base: Path,
) -> None:
    """Whatever a user does to their own files, one thing after the other, the other user's stall is reported."""
    theirs = begin_theirs(2)
    for spoil in (link_the_stacks, pipe_the_names, swell_the_checkpoint, pipe_the_target):
        spoil(base / THEIR_JOB)
    give_away(base / THEIR_JOB)
    theirs.send(0, "enter 1")  # a stall of their own, so that their stacks are read
    ranks = begin(2)
    ranks.send(0, "enter 1")
    service = start("agent", "--watch", "--keep", "3", OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="1000")
    service.wait_for(r"stall: rank 1 has not entered all_reduce")
    service.wait_for(rf"{THEIR_JOB}/agent\.checkpoint cannot be used \(it has more than")
    service.wait_for(rf"{THEIR_JOB}/[0-9a-f]+\.names cannot be read \(not a regular file\)")
    until(lambda: "torchdist_stall_info{" in page_of(base))
    for spoil in (nest_the_stacks, spoil_the_names):
        for path in (base / THEIR_JOB).glob("*.stacks"):
            path.unlink()
        spoil(base / THEIR_JOB)
    tapes = sorted((base / THEIR_JOB).glob("*.tape"))
    os.truncate(tapes[0], 4096)
    service.wait_for(rf"a tape can no longer be read: .*/{THEIR_JOB}/{tapes[0].name}: truncated while it was read")
    ranks.send(1, "enter 1")
    for rank in (0, 1):
        ranks.send(rank, "end")
    service.wait_for("stall over: all_reduce")
    assert "Traceback" not in service.out + service.err


@pytest.mark.thorough
@only_root
def test_descriptors_that_others_take(base: Path, start: Callable[..., Running], begin: Callable[..., Ranks]) -> None:
    """A user with more tapes than there are descriptors is read in part, with a warning; other users' jobs are kept."""
    ranks = begin(2)
    ranks.send(0, "enter 1")
    [template] = [path for path in sorted((base / JOB).glob("*.tape"))[:1]]
    theirs = base / THEIR_JOB
    live = Ranks(theirs, 1)
    try:
        for number in range(1, 120):
            forge(template, theirs / f"{number:016x}.tape")
        give_away(theirs)
        service = start("agent", "--watch", "--keep", "1", OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="1000")
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (96, 96))
        service.wait_for(rf"{THEIR_JOB}: \d+ of its tapes are not read: `ulimit -n` leaves the agent too few")
        service.wait_for(r"stall: rank 1 has not entered all_reduce")
        assert "stopped reading" not in service.out
        assert "Too many open files" not in service.out + service.err
    finally:
        live.close()


def test_links_in_place_of_directories(tmp_path: Path) -> None:
    """Root writes only where it checked: a directory, or its parent, that was swapped for a link is not followed."""
    elsewhere, base = tmp_path / "elsewhere", tmp_path / "base"
    (elsewhere / JOB).mkdir(parents=True)
    base.mkdir()
    (base / JOB).symlink_to(elsewhere / JOB)
    (base / FOLDER).symlink_to(elsewhere)
    (tmp_path / "linked").symlink_to(elsewhere)
    for path in (base / JOB / "file", base / FOLDER / "file", tmp_path / "linked" / JOB / "file"):
        with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
            owned_files.replace_at_once(path, path.with_name(".hidden"), b"ours")
        with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
            owned_files.create_anew(path)
        with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
            owned_files.open_or_create(path)
    with pytest.raises(AgentError):
        Job(base / JOB)
    ScrapeTarget(base / JOB).publish("localhost", 1)
    assert [path.name for path in elsewhere.rglob("*")] == [JOB]


def test_many_bad_tapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anyone can create bad tapes without end: the log about them is bounded."""
    for number in range(1, 3 * MAX_WARNINGS):
        (tmp_path / f"{number:016x}.tape").write_bytes(b"")
    tapes = LocalTapes(tmp_path)
    assert tapes.new(only_alive=False) == tapes.new(only_alive=False) == []
    assert len(caplog.records) == MAX_WARNINGS + 1
    assert caplog.records[-1].getMessage() == f"{tmp_path}: further problems with its tapes are not logged"


def test_lock_that_is_no_file(
    begin: Callable[..., Ranks], reading: Agent, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that cannot be locked is not read, and one line gives its name and the reason; the next one is read."""
    with contextlib.closing(Ranks(base / THEIR_JOB, 1)):
        begin(1)
        (base / THEIR_JOB / READER_LOCK_NAME).mkdir()
        watch = NodeWatch(reading, base, 60.0)
        for _ in range(3):
            watch.search()
        assert reading.directories == [base / JOB]
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            f"{base / THEIR_JOB} is not read: Is a directory"
        ]


class StrayJob(Job):
    """A job whose reading fails with an unexpected error."""

    def follow_new_tapes(self, reader: Reader, most: int | None = None) -> None:
        """Fail."""
        raise ValueError("astray\x1b[2J")


@only_root
def test_job_that_leads_us_astray(
    begin: Callable[..., Ranks],
    begin_theirs: Callable[[int], Ranks],
    reading: Agent,
    base: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error caused by another user's job drops that job, with one line; the next one is read."""
    begin_theirs(1)
    begin(1)
    reading.add(StrayJob(base / THEIR_JOB)).add(Job(base / JOB))
    for _ in range(3):
        reading.turn()
    assert reading.directories == [base / JOB]
    assert [tape.path.parent for tape in reading.reader.tapes] == [base / JOB]
    [line] = [record.getMessage() for record in caplog.records if "no longer read" in record.getMessage()]
    assert line.startswith(f"{base / THEIR_JOB} is no longer read")
    assert line.endswith(r"ValueError: astray\x1b[2J")


FORGED = 200
FORGED_SIZE = 2**64 - 1


def enter_impossible(writer: TapeWriter, sequence: int) -> None:
    """Enter and end an operation of an impossible size, and then end its step."""
    now = time.monotonic_ns()
    number = writer.begin(now, 0, sequence, FORGED_SIZE, 0, 0, 0, 0, -1, 0, 1, RecordKind.OPERATION, 0)
    writer.complete(number, now, now + 1_000, How.CALL)
    writer.step_ended(0, now, sequence)


@pytest.mark.parametrize("exporter", ["otlp", pytest.param("torchdist_otlp_json", marks=pytest.mark.thorough)])
def test_one_warning(
    begin: Callable[..., Ranks],
    start: Callable[..., Running],
    base: Path,
    receiver: OtlpReceiver,
    tmp_path: Path,
    exporter: str,
) -> None:
    """200 impossible sequences and 200 impossible sizes are one warning, and the other job of the node is served."""
    ranks = begin(1)
    (base / THEIR_JOB).mkdir(mode=0o700)
    writer = TapeWriter(base / THEIR_JOB, identify(0, 0, 1, 4_096))
    writer.set_run_id(0xF0, RunIdState.AGREED)
    service = start(
        "agent",
        "--watch",
        OTEL_TRACES_EXPORTER=exporter,
        OTEL_PYTHON_TORCHDIST_OTLP_FILE=str(tmp_path / "spans.json"),
    )
    service.wait_for(f"reading {base / THEIR_JOB}")
    for sequence in range(1, FORGED + 1):
        enter_impossible(writer, sequence)
        enter_impossible(writer, 2**64 - sequence)
    ranks.meet(1)
    until(lambda: page_of(base).count("torchdist_up{") == 2)
    lost = f'torchdist_records_lost_total{{rank="0",run="00000000"}} {2 * FORGED}.0'
    until(lambda: lost in page_of(base))
    until((base / THEIR_JOB / "agent.checkpoint").exists)
    writer.close()
    service.process.terminate()
    assert service.end(40) == 0, service.story()
    refused = [line for line in service.out.splitlines() if "records that no rank of this version writes" in line]
    assert len(refused) == 1 and str(writer.path) in refused[0]
    assert "cannot be written" not in service.out + service.err
    assert "encode" not in service.out + service.err
    assert len((service.out + service.err).splitlines()) < 15, service.story()
