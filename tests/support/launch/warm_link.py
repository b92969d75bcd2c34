"""How jobs and answers reach an interpreter that has imported torch: one of our own, or one that several share."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from tests.support.launch.forked_ranks import PADDING, ROOM
from tests.support.repository import REPOSITORY

FORKER: Final = Path(__file__).with_name("warm_interpreter.py")
READY: Final = "ready\n"


@dataclass(frozen=True)
class Link:
    """A way to the interpreter.

    Attributes:
        asks: Where jobs are written.
        answers: Where its answers come; they end once all jobs have, after `end`.
        end: Ask no more.
    """

    asks: IO[str]
    answers: IO[str]
    end: Callable[[], None]


def link_to_own(imports: Sequence[str] = (), more: Mapping[str, str] | None = None) -> Link:
    """Start an interpreter, and wait until it is ready.

    Args:
        imports: Modules that it imports beyond those that it always does.
        more: Additions to its environment.
    """
    process = subprocess.Popen(
        _command("", *imports),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**_environment(), **(more or {})},
    )
    asks, answers = process.stdin, process.stdout
    assert asks is not None and answers is not None
    assert answers.readline() == READY

    def end() -> None:
        asks.close()
        assert process.wait(60) == 0

    return Link(asks, answers, end)


def link_to_shared(folder: Path) -> Link:
    """Connect to the interpreter of a folder, which the first that asks starts, and wait until it is ready.

    It ends with the last connection; a process that connects later starts another.
    """
    address = folder / "socket"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _connect(address) or _start(address)


def _connect(address: Path) -> Link | None:
    """Connect; None if no interpreter is there, or if it ends at this moment."""
    connection = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(FileNotFoundError, ConnectionError):
        connection.connect(str(address))
        link = _link(connection)
        if link is not None:
            return link
    connection.close()
    return None


def _start(address: Path) -> Link:
    """Start the interpreter and be the first to be connected to it."""
    address.unlink(missing_ok=True)
    connection = socket.socket(socket.AF_UNIX)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        connection.connect(str(address))
        # It goes on in the background, so that it can outlive us.
        subprocess.run(
            _command(str(listener.fileno())),
            stdin=subprocess.DEVNULL,
            env=_environment(),
            pass_fds=[listener.fileno()],
            check=True,
        )
    link = _link(connection)
    assert link is not None, "the interpreter has ended while it imported torch"
    return link


def _link(connection: socket.socket) -> Link | None:
    """Wait for the greeting; None if the other side ends instead."""
    answers = connection.makefile("r")
    if answers.readline() != READY:
        answers.close()
        return None
    asks = connection.makefile("w")

    def end() -> None:
        asks.close()
        connection.shutdown(socket.SHUT_WR)
        connection.close()  # the file of answers keeps it open

    return Link(asks, answers, end)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-X", f"padding={ROOM}", str(FORKER), *arguments]


def _environment() -> dict[str, str]:
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # The entry point has to wait for the first group in every forked process, whose own environment then decides.
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        PADDING: ROOM,
    }
