"""Out of descriptors, or without its directory, an agent keeps what it has and reports that once."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.job import AgentError, Job
from otel_torchdist.agent.node import NodeWatch
from otel_torchdist.agent.reading import checkpoint
from otel_torchdist.agent.reading.checkpoint import Checkpoint
from otel_torchdist.node.job.directory import CHECKPOINT_NAME, READER_LOCK_NAME
from tests.agent.conftest import JOB, give_away
from tests.agent.own_agent import OwnAgent
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.tapes.tapes import open_descriptors, settled_descriptors

OTHER_JOB = "job-00000000000000bb"


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Keep this process from opening anything more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.thorough
def test_service_that_can_list_nothing(begin: Callable[..., Ranks], start: Callable[..., Running], base: Path) -> None:
    """A running service can no longer open any descriptor.

    It keeps every job, reports a stall that begins then, warns once for each directory, and starts reading what has
    appeared meanwhile when descriptors are available again.
    """
    ranks = begin(2)
    ranks.meet(1)
    service = start(
        "agent", "--watch", "--keep", "0.5", OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="800", OTEL_TRACES_EXPORTER="none"
    )
    service.wait_for("found ranks 0-1")
    time.sleep(0.5)  # by now the names have been read
    soft, hard = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (3, hard))
    service.wait_for(rf"{base} cannot be scanned: Too many open files; a larger `ulimit -n`")
    other = Ranks(base / OTHER_JOB, 1)
    try:
        ranks.send(0, "enter 2")
        service.wait_for(r"stall: rank 1 has not entered all_reduce \(sequence 2, default_pg\)")
        time.sleep(1.5)
        assert OTHER_JOB not in service.out
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        service.wait_for(rf"reading {base / OTHER_JOB}")
        assert service.out.count("cannot be scanned") == 1
        assert "stopped reading" not in service.out
        assert "Traceback" not in service.out + service.err
    finally:
        other.close()


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_user_with_more_directories_than_descriptors(
    begin: Callable[..., Ranks], start: Callable[..., Running], base: Path
) -> None:
    """Each directory costs a lock: another user's are read in part, and every other stall is still reported."""
    theirs = [Ranks(base / f"job-{number:016x}", 1) for number in range(12)]
    give_away(base)
    service = start("agent", "--watch", "--keep", "1", OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="800")
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (64, 64))
    try:
        service.wait_for(rf"{base}: \d+ of its job directories are not read: `ulimit -n` leaves the agent too few")
        ranks = begin(2)
        ranks.send(0, "enter 1")
        service.wait_for(rf"reading {base / JOB}")
        service.wait_for(r"stall: rank 1 has not entered all_reduce")
        assert service.out.count("job directories are not read") == 1
        assert "Too many open files" not in service.out + service.err
    finally:
        for job in theirs:
            job.close()


def test_job_with_few_descriptors(begin: Callable[..., Ranks], agent: Callable[..., Running]) -> None:
    """An agent that is limited to 24 reads its one rank without problems."""
    ranks = begin(1)
    running = agent(OTEL_TRACES_EXPORTER="none")
    resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (24, 24))
    running.wait_for("found rank 0 of 1")
    ranks.meet(1)
    ranks.exit()
    assert running.end(40) == 0, running.story()
    assert "all ranks have ended; everything they recorded was exported" in running.out
    assert "Too many" not in running.out + running.err


def test_memory_that_cannot_be_listed(
    begin: Callable[..., Ranks],
    reading: Agent,
    base: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Runs being read are kept when the place where users have their bases cannot be listed; one warning each."""
    begin(1)
    watch = NodeWatch(reading, None, 0.0, memory=base.parent, usual_bases=re.compile("tapes"))
    watch.search()
    reading.turn()
    with no_descriptors():
        for _ in range(3):
            watch.search()
            reading.turn()
    watch.search()
    assert reading.directories == [base / JOB]
    warnings = [record.getMessage() for record in caplog.records if "cannot be scanned" in record.getMessage()]
    assert [line.partition(" cannot")[0] for line in warnings] == [str(base.parent), str(base)]


def test_directory_that_cannot_be_taken_up(
    begin: Callable[..., Ranks],
    reading: Agent,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A disk error in its lock is one warning however often it is retried, also beside another directory's."""
    begin(1)
    is_broken = True

    def fail(path: str | Path, *arguments: int, **options: int) -> int:
        if is_broken and path == READER_LOCK_NAME:
            raise OSError(errno.EIO, "Input/output error")
        return opens(path, *arguments, **options)

    opens = os.open
    monkeypatch.setattr(os, "open", fail)
    watch = NodeWatch(reading, base, 0.0)
    for _ in range(3):
        watch.search()
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"{base / JOB} cannot be scanned: Input/output error"
    ]
    is_broken = False
    watch.search()
    assert reading.directories == [base / JOB]


def test_checkpoint_without_descriptors(
    begin: Callable[..., Ranks], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreadable checkpoint is not taken for missing: spans would be sent twice; a failed save keeps its error."""
    begin(1)
    checkpoint.save(base / JOB, Checkpoint(done=frozenset({17})))
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            checkpoint.load(base / JOB)
        with pytest.raises(OSError, match="Too many open files"):
            checkpoint.save(base / JOB, Checkpoint())
    before = settled_descriptors()

    def fail(path: str | Path, *arguments: int, **options: int) -> int:
        if Path(path).name == CHECKPOINT_NAME:
            raise OSError(errno.EMFILE, "Too many open files")
        return opens(path, *arguments, **options)

    opens = os.open
    with monkeypatch.context() as patch, pytest.raises(AgentError, match=f"{JOB}: cannot be read: Too many"):
        patch.setattr(os, "open", fail)
        Job(base / JOB)
    assert open_descriptors() == before
    assert checkpoint.load(base / JOB) == Checkpoint(done=frozenset({17}))


def test_job_directory_that_is_removed(
    begin: Callable[..., Ranks], base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names what may have removed it; a stall that begins later is still reported, and the end."""
    caplog.set_level(logging.INFO, "otel_torchdist")
    ranks = begin(2)
    ranks.meet(1)
    with contextlib.closing(OwnAgent(base / JOB, stall_timeout=0.5)) as own:
        own.turn_until(lambda: "found ranks 0-1" in caplog.text)
        shutil.rmtree(base / JOB)
        own.turn_until(lambda: "RemoveIPC=yes" in caplog.text)
        ranks.send(0, "enter 2")
        own.turn_until(lambda: "stall: rank 1 has not entered all_reduce (sequence 2," in caplog.text)
        assert caplog.text.count("RemoveIPC") == 1
        ranks.close()
        own.turn_until(lambda: own.shown("torchdist_up") == {0: 0, 1: 0})


@pytest.mark.thorough
def test_service_whose_job_directory_is_removed(
    begin: Callable[..., Ranks], start: Callable[..., Running], base: Path
) -> None:
    """The same, for longer than a service keeps a job that is gone."""
    ranks = begin(2)
    ranks.meet(1)
    service = start(
        "agent", "--watch", "--keep", "1", OTEL_PYTHON_TORCHDIST_STALL_TIMEOUT="500", OTEL_TRACES_EXPORTER="none"
    )
    service.wait_for("found ranks 0-1")
    shutil.rmtree(base / JOB)
    service.wait_for("RemoveIPC=yes")
    time.sleep(2.5)
    ranks.send(0, "enter 2")
    service.wait_for(r"stall: rank 1 has not entered all_reduce \(sequence 2,")
    assert service.out.count("RemoveIPC") == 1
    assert "Traceback" not in service.out + service.err
    ranks.close()
    service.wait_for("stopped reading")
