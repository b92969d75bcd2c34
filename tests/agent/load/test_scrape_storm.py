"""`/metrics` of an agent under hundreds of clients, most of which never finish their request."""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from otel_torchdist.show.serving.clients import MAX_CLIENTS
from tests.agent.life.test_life import count_on
from tests.agent.training import page_of, target_in
from tests.support.commands.running import Running
from tests.support.ranks.job_ranks import Ranks
from tests.support.waiting import core_waits_s, until, waited_for_a_core_s

SLOW = 300
SCRAPES = 400
AT_ONCE = 100
"""As many as there is room for once the slow clients, which came before, are gone."""
PROMISE_S = 1.0
"""Until other clients are answered; time in which the agent waits for a core comes on top."""
OWN = 40
"""Maximum threads and descriptors of an agent without clients."""


@pytest.mark.thorough
def test_reading_goes_on(begin: Callable[..., Ranks], agent: Callable[..., Running], base: Path) -> None:
    """The agent answers other clients within a second and keeps reading; its threads and descriptors are bounded."""
    ranks = begin(2)
    running = agent()
    until(lambda: len(count_on(page_of(base), "all_reduce")) == 0 and page_of(base))
    host, port = target_in(base).split(":")
    process = Path(f"/proc/{running.process.pid}")

    def scrape(_: int = 0) -> str:
        """Scrape a page, and nothing that takes long."""
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=30) as page:
            return page.read().decode()

    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(SLOW):
            client = stack.enter_context(socket.create_connection((host, int(port)), timeout=30))
            client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: "[: 40 * (number % 2)])
        began, before = time.monotonic(), core_waits_s(running.process.pid)
        scrape()
        took_s = time.monotonic() - began
        assert took_s < PROMISE_S + waited_for_a_core_s(running.process.pid, before)
        pages = pool.map(scrape, range(SCRAPES))
        for sequence in range(1, 11):
            ranks.meet(sequence)
        # Threads whose clients have left may still be ending. Silent clients would stay for much longer.
        until(lambda: len(os.listdir(process / "task")) < MAX_CLIENTS + OWN, 1.0)
        assert len(os.listdir(process / "fd")) < MAX_CLIENTS + OWN
        assert all("torchdist_up{" in page for page in pages)
        until(lambda: count_on(scrape(), "all_reduce") == [10, 10])
    until(lambda: len(os.listdir(process / "task")) < OWN)
    ranks.exit()
    assert running.end(40) == 0, running.story()
    assert "WARNING" not in running.out
    assert running.err == ""
