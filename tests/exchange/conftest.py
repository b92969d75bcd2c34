"""Fixtures for all tests of the exchange."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_torchdist.exchange import election, run_exchange
from otel_torchdist.exchange import peer as other
from otel_torchdist.serving import http_server
from tests.exchange.echo_agent import Agent, Current, begin_instance
from tests.exchange.listening import served
from tests.exchange.peer_agents import Agents, agents


@pytest.fixture(autouse=True)
def prompt_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server notice sooner than in production that it should end, because each test ends some."""
    monkeypatch.setattr(http_server, "_POLL_S", 0.02)


@pytest.fixture(scope="module")
def current() -> Iterator[tuple[Current, int]]:
    """The served application, and its port."""
    app = Current()
    with served(app) as port:
        yield app, port


@pytest.fixture
def agent(current: tuple[Current, int]) -> Agent:
    """An agent of the run that has not been asked yet."""
    behind, port = current
    return begin_instance(behind, port)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trust end, and peace be interrupted, several times as soon as in production."""
    for module in (run_exchange, election):
        monkeypatch.setattr(module, "HURRIED_TRUST_S", 1.0)
    monkeypatch.setattr(election, "WAKE_TRUST_S", 0.7)
    monkeypatch.setattr(run_exchange, "WAKE_AFTER_S", 0.3)
    monkeypatch.setattr(run_exchange, "PEACEFUL_ROUND_S", 0.5)
    monkeypatch.setattr(run_exchange, "HURRIED_ROUND_S", 0.05)
    monkeypatch.setattr(other, "LOST_ROUND_S", 0.2)


@pytest.fixture
def two() -> Iterator[Agents]:
    """Two nodes."""
    with agents(2) as made:
        yield made


@pytest.fixture
def three() -> Iterator[Agents]:
    """Three nodes."""
    with agents(3) as made:
        yield made
