"""A user who swaps directories under a service of root's gains nothing of root's power, and reaches no other user."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.job import Job
from otel_torchdist.agent.node import NodeWatch
from otel_torchdist.config import Config, parse_actions
from otel_torchdist.node.job.directory import READER_LOCK_NAME
from otel_torchdist.node.job.peers import PORT_FILE, Peers, write_peers
from otel_torchdist.node.job.tapes import MAX_WARNINGS
from otel_torchdist.show.serving.scrape_target import ScrapeTarget
from otel_torchdist.tape.identity import decode_identity, encode_identity, process_start_ticks
from otel_torchdist.tape.layout import IDENTITY_SIZE
from tests.agent.conftest import JOB, give_away, quiet_outputs
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import until

STRANGER, VICTIM = 23456, 23457
THEIR_JOB = "job-00000000000000ee"
OWN_RUN = 0xF00D
ABORTED = "on stall: abort"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def swap_for_link(directory: Path, target: Path) -> None:
    """Put a link in the place of a directory."""
    directory.rename(directory.with_name(f"{directory.name}-aside"))
    directory.symlink_to(target)


def swap_back(directory: Path) -> None:
    """Put a directory back in the place of the link."""
    directory.unlink()
    directory.with_name(f"{directory.name}-aside").rename(directory)


def claim(tape: Path, pid: int) -> None:
    """Make a tape claim to be written by another process."""
    with tape.open("r+b") as file:
        identity = decode_identity(file.read(IDENTITY_SIZE), "here")
        file.seek(0)
        ticks = process_start_ticks(pid) or 0
        file.write(encode_identity(dataclasses.replace(identity, pid=pid, pid_start_ticks=ticks)))


@pytest.fixture
def begin_theirs(base: Path) -> Iterator[Callable[..., Ranks]]:
    """Begins a job in the base directory of another user."""
    with contextlib.ExitStack() as stack:

        def begin(user: int = STRANGER, job: str = THEIR_JOB, size: int = 2) -> Ranks:
            directory = base.with_name(f"otel-torchdist-{user}") / job
            ranks = Ranks(directory, size, run=user << 64)
            stack.callback(ranks.close)
            give_away(directory.parent, user)
            return ranks

        yield begin


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of a third user."""
    with subprocess.Popen(["sleep", "300"], user=VICTIM, group=VICTIM, extra_groups=[]) as process:
        yield process
        process.kill()


@pytest.fixture
def serve(base: Path) -> Iterator[Callable[..., tuple[Agent, NodeWatch]]]:
    """Creates a service of root's; see `Config` for the arguments. It is not run, so that each pass can be observed."""
    with contextlib.ExitStack() as stack:

        def serve(their_base: Path | None, serves_metrics: bool = False, **settings: object) -> tuple[Agent, NodeWatch]:
            config = dataclasses.replace(Config(machine=False, critical_path=False), **settings)
            agent = Agent(config, lambda: quiet_outputs(serves_metrics))
            stack.callback(agent.close)
            return agent, NodeWatch(agent, their_base, 60.0, memory=base.parent)

        yield serve


@pytest.fixture
def swap_at_lock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, Path], None]:
    """Swaps a job directory for a link at the moment at which a service has opened its lock."""

    def prepare(directory: Path, target: Path) -> None:
        def swap(path: str | Path, *arguments: int, **options: int) -> int:
            file = opens(path, *arguments, **options)
            if path == READER_LOCK_NAME and os.readlink(f"/proc/self/fd/{options['dir_fd']}") == str(directory):
                swap_for_link(directory, target)
            return file

        opens = os.open
        monkeypatch.setattr(os, "open", swap)

    return prepare


def test_no_process_of_another_user_is_killed(
    base: Path,
    begin_theirs: Callable[..., Ranks],
    serve: Callable[..., tuple[Agent, NodeWatch]],
    swap_at_lock: Callable[[Path, Path], None],
    victim: subprocess.Popen[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A job whose directory leads to one of root's while it is taken up is still its user's: root does not act on it.

    Its tapes claim a third user's process. A job of root's, which stalls a moment later, is ended as configured.
    """
    caplog.set_level(logging.WARNING)
    theirs = begin_theirs()
    their_base = base.with_name(f"otel-torchdist-{STRANGER}")
    directory = their_base / THEIR_JOB
    for tape in directory.glob("*.tape"):
        claim(tape, victim.pid)
    swap_at_lock(directory, Path("/"))
    agent, watch = serve(their_base, on_stall=parse_actions("abort"), on_stall_grace=0.0, stall_timeout=0.3)
    watch.search()
    swap_back(directory)
    theirs.send(0, "enter 1")
    with contextlib.closing(Ranks(base / JOB, 2, run=OWN_RUN)) as own:
        agent.add(Job(base / JOB))
        until(lambda: agent.turn() or agent.reader.watch.ongoing)
        own.send(0, "enter 1")
        until(lambda: agent.turn() or any(ABORTED in record.getMessage() for record in caplog.records))
    until(lambda: "torchdist-on-stall" not in {thread.name for thread in threading.enumerate()})
    assert victim.poll() is None
    assert STRANGER << 64 in {stall.ruling.incident.run for stall in agent.reader.watch.ongoing}, (
        "it was seen, and goes on"
    )
    [outcome] = [record.getMessage() for record in caplog.records if ABORTED in record.getMessage()]
    assert outcome == f"{ABORTED} ended 2 ranks"


def test_no_user_chooses_where_root_listens(
    base: Path,
    begin_theirs: Callable[..., Ranks],
    serve: Callable[..., tuple[Agent, NodeWatch]],
    swap_at_lock: Callable[[Path, Path], None],
) -> None:
    """Addresses in a user's job directory are not used, even if that led to one of root's while it was taken up."""
    begin_theirs()
    their_base = base.with_name(f"otel-torchdist-{STRANGER}")
    directory = their_base / THEIR_JOB
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    write_peers_of(directory, STRANGER)
    ScrapeTarget(directory, STRANGER).publish("127.0.0.1", port)
    swap_at_lock(directory, Path("/"))
    agent, watch = serve(their_base, serves_metrics=True, prometheus_port=0)
    watch.search()
    swap_back(directory)
    agent.turn()
    assert agent.directories == [directory]
    assert not (directory / PORT_FILE).exists()
    assert agent.metrics_port not in (None, port)


def write_peers_of(directory: Path, user: int) -> None:
    """Name addresses of agents, as a user's rank does."""
    os.chown(directory, 0, 0)
    write_peers(directory, Peers(user << 64, bytes(32), 0, "127.0.0.1"))
    give_away(directory, user)


def test_link_to_another_users_job(
    base: Path,
    begin_theirs: Callable[..., Ranks],
    serve: Callable[..., tuple[Agent, NodeWatch]],
) -> None:
    """A job directory that is swapped for a link to another user's takes over none of that user's tapes."""
    begin_theirs(STRANGER, size=1)
    agent, watch = serve(None)
    watch.search()
    agent.turn()
    [directory] = agent.directories
    begin_theirs(VICTIM, JOB)
    swap_for_link(directory, base.with_name(f"otel-torchdist-{VICTIM}") / JOB)
    agent.turn()
    watch.search()
    agent.turn()
    found = {(tape.owner, tape.path.parent.parent.name) for tape in agent.reader.tapes}
    assert found == {(user, f"otel-torchdist-{user}") for user in (STRANGER, VICTIM)}
    assert len(agent.reader.tapes) == 3


def test_base_directory_that_leads_to_another_users(
    base: Path,
    begin_theirs: Callable[..., Ranks],
    serve: Callable[..., tuple[Agent, NodeWatch]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same holds for a link in place of the base directory: one warning names whose the job directory now is."""
    begin_theirs(STRANGER, JOB, size=1)
    agent, watch = serve(None)
    watch.search()
    agent.turn()
    [directory] = agent.directories
    begin_theirs(VICTIM, JOB)
    swap_for_link(directory.parent, base.with_name(f"otel-torchdist-{VICTIM}"))
    for _ in range(2):
        agent.turn()
    watch.search()
    agent.turn()
    found = {(tape.owner, tape.path.parent.parent.name) for tape in agent.reader.tapes}
    assert found == {(user, f"otel-torchdist-{user}") for user in (STRANGER, VICTIM)}
    assert [record.getMessage() for record in caplog.records if "listed" in record.getMessage()] == [
        f"{directory}: its tapes cannot be listed: it belongs to user {VICTIM} and not to user {STRANGER}"
    ]


def test_swapping_again_and_again(
    begin_theirs: Callable[..., Ranks],
    base: Path,
    serve: Callable[..., tuple[Agent, NodeWatch]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a user does to the path of their job, and however often, the service's log about it is bounded."""
    begin_theirs(size=1)
    directory = base.with_name(f"otel-torchdist-{STRANGER}") / THEIR_JOB
    agent, _ = serve(directory.parent)
    job = Job(directory)
    agent.add(job).turn()
    other = base.with_name("other")
    other.mkdir()
    for _ in range(2 * MAX_WARNINGS):
        swap_for_link(directory, other)
        agent.turn()
        job.save(agent.reader)
        swap_back(directory)
        agent.turn()
        job.save(agent.reader)
        os.chown(directory, VICTIM, VICTIM)
        agent.turn()
        os.chown(directory, STRANGER, STRANGER)
    assert [tape.path.parent for tape in agent.reader.tapes] == [directory]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == MAX_WARNINGS + 1
    assert lines[-1] == f"{directory}: further problems with its tapes are not logged"
