"""A store that is slow to accept our connection changes neither the program's run nor its exit code."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.capture.core.run.announcements import HOST
from tests.support.launch.quiet import QUIET
from tests.support.repository import REPOSITORY

WORKER = Path(__file__).parent / "workers" / "ends_before_store_answers.py"


class LateStore:
    """Passes on what the first client and a store say to each other, and all others only once they are let through.

    A store does so whose machine looks up the name of each client that connects.
    """

    def __init__(self, port: int) -> None:
        self._store_port = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.has_other_clients = threading.Event()
        self.lets_through = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            threading.Thread(target=self._pass_on, args=(self._listener.accept()[0],), daemon=True).start()
            while True:
                threading.Thread(target=self._pass_on_late, args=(self._listener.accept()[0],), daemon=True).start()

    def _pass_on_late(self, client: socket.socket) -> None:
        self.has_other_clients.set()
        self.lets_through.wait()
        self._pass_on(client)

    def _pass_on(self, client: socket.socket) -> None:
        with client, socket.create_connection((HOST, self._store_port)) as store, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, store)
            ready.register(store, selectors.EVENT_READ, client)
            with contextlib.suppress(OSError):
                while True:
                    for key, _ in ready.select():
                        source: Any = key.fileobj
                        if not (data := source.recv(65536)):
                            return
                        key.data.sendall(data)

    def close(self) -> None:
        """Take no more clients."""
        self.lets_through.set()
        self._listener.close()


@pytest.fixture
def late(store: Any) -> Iterator[LateStore]:
    """The job's store, late."""
    late = LateStore(store.port)
    yield late
    late.close()


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_program_ends_while_our_thread_is_in_the_store(rank: int, late: LateStore, memory: Path) -> None:
    """A program that ends before the store accepts our connection exits with 0, and rank 0 has set the run id."""
    environ = {
        **os.environ,
        **QUIET,
        "OTEL_PYTHON_TORCHDIST_ENABLED": "true",
        "OTEL_PYTHON_TORCHDIST_READER": "none",
        "OTEL_PYTHON_TORCHDIST_TAPE_DIR": str(memory),
    }
    command = [sys.executable, str(WORKER), str(rank), str(late.port)]
    with subprocess.Popen(command, env=environ, cwd=REPOSITORY, stdout=-1, stderr=-1, text=True) as program:
        assert program.stdout is not None
        begin = json.loads(program.stdout.readline())
        assert program.stdout.readline() == "ending\n"
        assert late.has_other_clients.is_set()
        late.lets_through.set()
        _, errors = program.communicate()
    assert (program.returncode, errors) == (0, "")
    assert begin["has_id"] is (rank == 0)
