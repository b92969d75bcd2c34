"""Fixtures for all tests of the exchange."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.exchange.echo_agent import Agent, Current, begin_instance
from tests.agent.exchange.listening import served
from tests.agent.exchange.peer_agents import Agents, agents


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
def two() -> Iterator[Agents]:
    """Two nodes."""
    with agents(2) as made:
        yield made


@pytest.fixture
def three() -> Iterator[Agents]:
    """Three nodes."""
    with agents(3) as made:
        yield made
