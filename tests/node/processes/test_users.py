"""Whose process a pid is, and who may signal it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from otel_torchdist.node.processes.state import belongs_to, can_signal

USER, OTHER = 23456, 23457
CHANGES_USER = f"""
import os, time
os.setresuid({USER}, {OTHER}, {OTHER})
print("ready", flush=True)
time.sleep(60)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users")


@pytest.fixture
def plain() -> Iterator[int]:
    """A process of a user."""
    with subprocess.Popen(["sleep", "60"], user=USER, group=USER, extra_groups=[]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def changed() -> Iterator[int]:
    """A process that this user has begun and that acts as another user."""
    with subprocess.Popen([sys.executable, "-c", CHANGES_USER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process.pid
        process.kill()


def kernel_lets(user: int, pid: int) -> bool:
    """Whether the kernel lets a process of that user send a signal (0, which only checks)."""
    command = ["kill", "-0", str(pid)]
    return subprocess.run(command, user=user, group=user, extra_groups=[], stderr=subprocess.DEVNULL).returncode == 0


def test_as_the_kernel_decides(plain: int, changed: int) -> None:
    """The answers are those of the kernel, for root, the user who began a process, and the user as whom it acts."""
    for pid in (plain, changed):
        for user in (0, USER, OTHER, OTHER + 1):
            assert can_signal(user, pid) == kernel_lets(user, pid), (user, pid)
    assert (can_signal(USER, changed), can_signal(OTHER, plain)) == (True, False)


def test_files_in_proc(plain: int, changed: int) -> None:
    """A process belongs to the user as whom it acts: one who has only begun it must not see what it does."""
    assert (belongs_to(plain, USER), belongs_to(plain, OTHER)) == (True, False)
    assert not belongs_to(changed, USER)


def test_process_that_is_gone() -> None:
    """A process that does not exist is nobody's, and nobody may signal it."""
    with subprocess.Popen(["true"]) as process:
        gone = process.pid
    assert not belongs_to(gone, os.geteuid()) and not can_signal(USER, gone) and not can_signal(0, gone)
