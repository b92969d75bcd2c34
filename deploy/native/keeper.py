"""Keeps the stack of `make up` running in the background, until `make down`."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Final

from deploy.native.ports import Ports
from deploy.native.program import ProgramError
from deploy.native.servers import DEPLOY, stack_binaries
from deploy.native.stack import Stack
from deploy.native.training import training_command, training_environment

RANKS: Final = 4
STEPS: Final = 60
BLOCK_S: Final = 120.0
THRESHOLD_S: Final = 5.0
STOP_S: Final = 45.0
_STATE: Final = "stack.json"
_LOCK: Final = "stack.lock"
_LOG: Final = "keeper.log"
_UP: Final = "up"


def running_home() -> Path:
    """Where the stack of this user lives."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-torchdist" / "running"


def is_running(home: Path) -> bool:
    """Whether a keeper holds the lock."""
    with _lock_file(home) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def start(home: Path, ports: Ports) -> None:
    """Start a keeper in a session of its own, and wait until the servers are up.

    Raises:
        ProgramError: It has ended instead.
    """
    home.mkdir(parents=True, exist_ok=True)
    (home / _UP).unlink(missing_ok=True)
    (home / _STATE).write_text(json.dumps(asdict(ports)))
    with (home / _LOG).open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "deploy.native", "keep"],
            cwd=DEPLOY.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while not (home / _UP).exists():
        if keeper.poll() is not None:
            raise ProgramError((home / _LOG).read_text(errors="replace").strip())
        time.sleep(0.1)


def stop(home: Path) -> bool:
    """End the stack and its job; False when none was running.

    Raises:
        ProgramError: It does not end.
    """
    if not is_running(home):
        return False
    os.kill(int((home / _LOCK).read_text()), signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while is_running(home):
        if time.monotonic() > deadline:
            raise ProgramError(f"the stack does not end; see {home / _LOG}")
        time.sleep(0.1)
    return True


def keep(home: Path, tapes: Path) -> None:
    """Run servers and job, until a signal comes.

    Raises:
        ProgramError: A server does not come up.
    """
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    binaries = stack_binaries()
    if binaries is None:
        raise ProgramError("the servers have not been built; run `make stack`")
    ports = Ports(**json.loads((home / _STATE).read_text()))
    with _held_lock(home), Stack(binaries, home / "servers", ports, tapes) as stack:
        environment = training_environment(stack.addresses.otlp, tapes, THRESHOLD_S, metrics_port=9464)
        job = subprocess.Popen(training_command(RANKS, STEPS, BLOCK_S), env=environment, cwd=home)
        (home / _UP).touch()
        told.wait()
        job.send_signal(signal.SIGTERM)
        try:
            job.wait(10)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


@contextmanager
def _held_lock(home: Path) -> Iterator[None]:
    with _lock_file(home) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        yield


@contextmanager
def _lock_file(home: Path) -> Iterator[int]:
    home.mkdir(parents=True, exist_ok=True)
    file = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)
