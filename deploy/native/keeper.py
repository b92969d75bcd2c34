"""Keeps the stack of `make up` running in the background, until `make down`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
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
from deploy.native.servers import DEPLOY, cache_folder, stack_binaries
from deploy.native.stack import Stack
from deploy.native.training import running, training_command, training_environment

RANKS: Final = 4
STEPS: Final = 60
BLOCK_S: Final = 120.0
THRESHOLD_S: Final = 5.0
STOP_S: Final = 90.0
_STATE: Final = "stack.json"
_LOG: Final = "keeper.log"
_UP: Final = "up"


def running_home() -> Path:
    """Return the directory of this user's stack."""
    return cache_folder() / "running"


def start(home: Path, ports: Ports) -> None:
    """Start a keeper in its own session, and wait until the servers are up.

    Raises:
        ProgramError: A keeper is already running, or the new one has ended.
    """
    with _lock_file(home) as lock:
        if not _take(lock):
            raise ProgramError("it is running already; `make down` ends it")
        ports.check_free()
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        (home / _STATE).write_text(json.dumps(asdict(ports)))
        with (home / _LOG).open("wb") as log:
            # The keeper inherits the descriptor, and with it the lock, which is released when the keeper has ended.
            keeper = subprocess.Popen(
                [sys.executable, "-m", "deploy.native", "keep"],
                cwd=DEPLOY.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock],
            )
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(keeper.pid).encode(), 0)
    while not (home / _UP).exists():
        if keeper.poll() is not None:
            raise ProgramError((home / _LOG).read_text(errors="replace").strip())
        time.sleep(0.1)


def stop(home: Path) -> bool:
    """Stop the stack and its job; return False if none was running.

    Raises:
        ProgramError: The stack does not end.
    """
    deadline = time.monotonic() + STOP_S
    was_running = False
    with _lock_file(home) as lock:
        while not _take(lock):
            pid = os.pread(lock, 32, 0)
            if pid and not was_running:
                # The keeper holds the lock, so it is alive, and the pid is still its pid.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGTERM)
                was_running = True
            if time.monotonic() > deadline:
                raise ProgramError(f"the stack does not end; see {home / _LOG}")
            time.sleep(0.1)
        os.ftruncate(lock, 0)
    return was_running


def keep(home: Path, tapes: Path) -> None:
    """Run the servers and the job until a signal comes.

    Raises:
        ProgramError: A server does not come up.
    """
    stopping = threading.Event()

    def stop_soon(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_soon)
    binaries = stack_binaries()
    if binaries is None:
        raise ProgramError("the servers have not been built; run `make stack`")
    ports = Ports(**json.loads((home / _STATE).read_text()))
    with Stack(binaries, home / "servers", ports, tapes) as stack:
        environment = training_environment(stack.addresses.otlp, tapes, THRESHOLD_S)
        with running(training_command(RANKS, STEPS, BLOCK_S), environment, home / "training.log"):
            (home / _UP).touch()
            _watch(stack, home, stopping)


def _watch(stack: Stack, home: Path, stopping: threading.Event) -> None:
    """Report each server that ends by itself, once, until a signal comes."""
    ended: list[str] = []
    while not stopping.wait(1.0):
        for name in stack.ended:
            if name not in ended:
                print(f"{name} has ended by itself; see its log in {home}", flush=True)
                ended.append(name)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _lock_file(home: Path) -> Iterator[int]:
    """Open the lock file. It lies beside the directory, because `start` replaces the directory."""
    home.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(home.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)
