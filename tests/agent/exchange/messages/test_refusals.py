"""Questions that an agent refuses: unsigned, meant for another, replayed, of another run, or too long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from otel_torchdist.agent.exchange import client as envelopes
from otel_torchdist.agent.exchange.client import SIGNATURE_HEADER, TO_HEADER, Envelope, NoAnswerError, ReplayGuard
from otel_torchdist.agent.exchange.peers import MAX_QUESTION, ExchangeApp
from tests.agent.exchange.echo_agent import (
    OTHER_TOKEN,
    PATH,
    RUN,
    SECRET,
    Agent,
    Current,
    begin_instance,
    headers_for,
    request_bytes,
)
from tests.agent.exchange.listening import HOST


def status_of(answer: bytes) -> int:
    """The status of a whole answer."""
    return int(answer.split()[1])


def without(name: str) -> Callable[[Agent], dict[str, str]]:
    """Headers with one missing."""
    return lambda agent: {key: value for key, value in headers_for(agent).items() if key != name}


REFUSED: dict[str, Callable[[Agent], dict[str, str]]] = {
    "no headers": lambda agent: {},
    "no signature": without(SIGNATURE_HEADER),
    "no receiver": lambda agent: headers_for(agent) | {TO_HEADER: ""},
    "another body": lambda agent: headers_for(agent, b"another"),
    "another number": lambda agent: headers_for(agent) | {envelopes.NUMBER_HEADER: "2"},
    "another sender": lambda agent: headers_for(agent) | {envelopes.FROM_HEADER: "x" * 16},
    "signature that is no text": lambda agent: headers_for(agent) | {SIGNATURE_HEADER: "\xff\xfe"},
    "another run's token": lambda agent: headers_for(agent, token=OTHER_TOKEN),
    "unknown run": lambda agent: headers_for(agent, run=RUN + 1),
    "run that is no number": lambda agent: headers_for(agent) | {envelopes.RUN_HEADER: "feedx"},
    "run out of range": lambda agent: headers_for(agent) | {envelopes.RUN_HEADER: "f" * 33},
    "number that is none": lambda agent: headers_for(agent) | {envelopes.NUMBER_HEADER: "1e3"},
    "number out of range": lambda agent: headers_for(agent, number=1 << 63),
    "number 0": lambda agent: headers_for(agent, number=0),
    "endless number": lambda agent: headers_for(agent) | {envelopes.NUMBER_HEADER: "9" * 6_000},
    "short sender": lambda agent: headers_for(agent, sender="s"),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_refused(make: Callable[[Agent], dict[str, str]], agent: Agent) -> None:
    """Each gets the same 403, empty and unsigned, and the question is not passed on."""
    response = agent.post(make(agent))
    assert response.status == 403
    assert response.body == b""  # type: ignore[attr-defined]
    assert SIGNATURE_HEADER not in response.headers
    assert agent.instance not in str(response.headers)
    assert agent.echo.received == []


def test_run_that_is_over(agent: Agent, current: tuple[Current, int]) -> None:
    """A run that has been dropped is as unknown as one that never existed."""
    client = agent.client()
    client.ask(PATH, b"", 10)
    app = current[0].app
    assert isinstance(app, ExchangeApp)
    for _ in range(2):
        app.drop(RUN)
        with pytest.raises(NoAnswerError, match=r"status 403\) does not have the run's token"):
            client.ask(PATH, b"", 10)


def test_replay(agent: Agent) -> None:
    """The exact bytes of an answered question are refused when they are sent again; so is a lower number."""
    body = b"where?"
    request = request_bytes(headers_for(agent, body, number=7), body)
    assert SECRET in agent.say(request)
    for again in (request, request, request_bytes(headers_for(agent, body, number=6), body)):
        answer = agent.say(again)
        assert status_of(answer) == 403
        assert SECRET not in answer
    assert agent.echo.received == [body]
    assert SECRET in agent.say(request_bytes(headers_for(agent, body, number=8), body))


def test_replay_to_a_restarted_agent(agent: Agent, current: tuple[Current, int]) -> None:
    """The agent's replacement has no memory of the question, and refuses it as meant for another instance."""
    body = b"where?"
    request = request_bytes(headers_for(agent, body), body)
    restarted = begin_instance(*current)
    answer = restarted.say(request)
    assert status_of(answer) == 409
    assert answer.partition(b"\r\n\r\n")[2] == restarted.instance.encode()
    assert restarted.echo.received == []


def test_other_methods(agent: Agent) -> None:
    """Other methods than POST find nothing, signed or not."""
    clients = "".join(f"{name}: {value}\r\n" for name, value in headers_for(agent).items())
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "NONSENSE"):
        answer = agent.say(f"{method} {PATH} HTTP/1.1\r\nHost: {HOST}\r\n{clients}\r\n".encode())
        assert status_of(answer) == 404
        assert answer.partition(b"\r\n\r\n")[2] == b""
    assert agent.echo.received == []


def test_question_without_length(agent: Agent) -> None:
    """A question of unknown length is not read, chunked or not."""
    clients = "".join(f"{name}: {value}\r\n" for name, value in headers_for(agent).items())
    for more in ("", "Transfer-Encoding: chunked\r\n", "Content-Length: -1\r\n", "Content-Length: 1e3\r\n"):
        answer = agent.say(f"POST {PATH} HTTP/1.1\r\nHost: {HOST}\r\n{clients}{more}\r\n".encode())
        assert status_of(answer) == 411
    assert agent.echo.received == []


@pytest.mark.parametrize("length", [str(MAX_QUESTION + 1), "9" * 18, "9" * 6_000])
def test_question_that_is_too_long(length: str, agent: Agent) -> None:
    """A question that is too long is refused at once, before any byte of it comes, however long it claims to be."""
    clients = "".join(f"{name}: {value}\r\n" for name, value in headers_for(agent).items())
    began = time.monotonic()
    answer = agent.say(f"POST {PATH} HTTP/1.1\r\nHost: {HOST}\r\n{clients}Content-Length: {length}\r\n\r\n".encode())
    assert status_of(answer) == 413
    assert time.monotonic() - began < 5


def test_table_of_senders_is_bounded() -> None:
    """Of many senders the ones that asked last are remembered, each with its number, and no others."""
    numbers = ReplayGuard(most=8)
    asked = [Envelope(RUN, f"{sender:016x}", "", 1) for sender in range(20)]
    assert all(numbers.is_new(envelope) for envelope in asked)
    assert not any(numbers.is_new(envelope) for envelope in asked[-8:])
    assert all(numbers.is_new(envelope) for envelope in asked[:-8])
    assert numbers.is_new(Envelope(RUN + 1, asked[-1].sender, "", 1))
