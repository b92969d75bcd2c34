"""Job directories of other users: without root an agent reports why it is refused; root leaves no files of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_torchdist.agent.agent import Agent
from otel_torchdist.agent.node import NodeWatch
from otel_torchdist.config import Config
from otel_torchdist.node.job.directory import CHECKPOINT_NAME, READER_LOCK_NAME, tapes_in
from tests.agent.conftest import JOB, give_away, quiet_outputs
from tests.agent.training import page_of
from tests.support.commands.running import SCRIPT, Running, environment
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import until

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def can_be_nobody() -> bool:
    """Whether a process of another user can import this package."""
    command = [*AS_NOBODY, sys.executable, "-c", "import otel_torchdist.cli"]
    return bool(shutil.which("setpriv")) and not subprocess.run(command, capture_output=True).returncode


def owners(path: Path) -> set[int]:
    """Owners of the files there, except stacks: ranks, which run as root here, write them when asked."""
    found: set[int] = set()
    for entry in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # it has got its final name meanwhile
            if ".stacks" not in entry.name:
                found.add(entry.lstat().st_uid)
    return found


@pytest.mark.parametrize(
    "mode", [pytest.param(0o700, marks=pytest.mark.thorough, id="closed"), pytest.param(0o755, id="open to all")]
)
def test_directory_of_another_user(begin: Callable[..., Ranks], base: Path, mode: int) -> None:
    """One line names the directory and reports that it cannot be read; the job neither lacks nor gains anything."""
    if not can_be_nobody():
        pytest.skip("another user cannot run this Python")
    ranks = begin(1)
    own = base.parent / "own"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    for path in (base.parent, base, base / JOB, *tapes_in(base / JOB)):
        path.chmod(mode)
    before = sorted(os.listdir(base / JOB))
    done = subprocess.run(
        [*AS_NOBODY, str(SCRIPT), "agent", "--run-dir", str(base / JOB), "--wait", "0.5"],
        env={**environment(own), "TERM": "dumb", "COLUMNS": "300"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (2, 64)
    assert str(base / JOB) in done.stderr
    if mode == 0o755:
        assert done.stderr == f"otel-torchdist: {base / JOB}: cannot be read: Permission denied\n"
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert sorted(os.listdir(base / JOB)) == before
    ranks.meet(1)


def test_root_leaves_nothing_of_its_own(begin: Callable[..., Ranks], base: Path) -> None:
    """What a node's service writes into a user's directory belongs to that user: their own agent can resume from it."""
    ranks = begin(1)
    give_away(base, NOBODY)
    config = dataclasses.replace(Config(), prometheus_port=0)
    with contextlib.closing(Agent(config, lambda: quiet_outputs(serves_metrics=True))) as service:
        watch = NodeWatch(service, base, 0.0)
        watch.search()
        until(lambda: service.turn() or (base / JOB / CHECKPOINT_NAME).exists())
        assert {path.name for path in (base / "prometheus").iterdir()} == {f"{JOB}.json"}
        assert owners(base) == {NOBODY}
        ranks.exit()
        until(lambda: service.turn() or watch.search() or not service.directories)
        assert owners(base) == {NOBODY}


@pytest.mark.thorough
def test_links_of_a_user_are_not_followed(
    begin: Callable[..., Ranks], agent: Callable[..., Running], base: Path, tmp_path: Path
) -> None:
    """Links that a user plants in their directory do not make root write where they lead."""
    ranks = begin(1)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    lock = base / JOB / READER_LOCK_NAME
    lock.symlink_to(tmp_path / "made")
    running = agent()
    assert running.end(40) == 2
    assert running.err == f"otel-torchdist: {base / JOB}: cannot be read: Too many levels of symbolic links\n"
    lock.unlink()
    (base / "prometheus").mkdir()
    for link in (base / "prometheus" / f".{JOB}.new", base / JOB / ".agent.checkpoint.new"):
        link.symlink_to(precious)
    running = agent()
    until(lambda: "torchdist_up{" in page_of(base))
    ranks.exit()
    assert running.end(40) == 0, running.story()
    (base / "prometheus").rmdir()
    (base / "prometheus").symlink_to(tmp_path)
    running = agent("--again")
    assert running.end(40) == 0, running.story()
    assert "the address of /metrics cannot be published" in running.out
    assert precious.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]
