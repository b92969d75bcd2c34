"""Signed questions over real connections: which ones are answered, and that no peer is locked out."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time

import pytest

from otel_torchdist.agent.exchange.client import SIGNATURE_HEADER, Envelope, NoAnswerError, PeerClient, envelope_from
from otel_torchdist.agent.exchange.peers import MAX_QUESTION
from tests.agent.exchange.echo_agent import (
    OTHER_TOKEN,
    PARSED,
    PATH,
    RUN,
    SECRET,
    TOKEN,
    Agent,
    Current,
    begin_instance,
    headers_for,
    request_bytes,
)
from tests.agent.exchange.listening import HOST, served


def test_signed_question_is_answered(agent: Agent) -> None:
    """Any client with the token gets the answer, with the times between which it was made."""
    client, before = agent.client(), time.monotonic_ns()
    answer = client.ask(PATH, b"where?", 10)
    assert answer.body == SECRET + b"where?"
    assert before <= answer.sent_ns < answer.received_ns <= time.monotonic_ns()
    assert [client.ask(PATH, bytes([number]), 10).body for number in range(3)] == [
        SECRET + bytes([number]) for number in range(3)
    ]


def test_answers_are_signed(agent: Agent) -> None:
    """The signature is that of this answer to this question under this token, and of nothing else."""
    body = b"where?"
    headers = headers_for(agent, body)
    envelope = envelope_from(headers)
    assert envelope is not None
    response = agent.post(headers, body)
    signature, answer = response.headers[SIGNATURE_HEADER], response.body  # type: ignore[attr-defined]
    assert signature == envelope.sign_answer(TOKEN, 200, answer)
    others = {
        envelope.sign_answer(OTHER_TOKEN, 200, answer),
        envelope.sign_answer(TOKEN, 409, answer),
        envelope.sign_answer(TOKEN, 200, answer + b" "),
        envelope.sign_request(TOKEN, PATH, answer),
        Envelope(RUN, "s" * 16, agent.instance, 2).sign_answer(TOKEN, 200, answer),
    }
    assert len(others) == 5
    assert signature not in others


def test_unknown_path(agent: Agent) -> None:
    """An agent of the run that asks for an unknown path gets a signed 404, which is not an answer."""
    with pytest.raises(NoAnswerError, match="HTTP status 404"):
        agent.client().ask("/v1/else", b"", 10)


def test_malformed_question(agent: Agent) -> None:
    """Signed bytes that are not a question get a signed 400, whatever they are; the agent goes on answering."""
    client = agent.client()
    for body in (b"", b"\xc1", b"\x93\x01", b"\xdd\xff\xff\xff\xff", b"\x81\xa8agent_id\xa1x", b"\x91" * 100_000):
        with pytest.raises(NoAnswerError, match="HTTP status 400"):
            client.ask(PARSED, body, 10)
    assert client.ask(PATH, b"still there?", 10).body.endswith(b"still there?")


def test_restarted_agent_is_found_with_the_second_question(agent: Agent, current: tuple[Current, int]) -> None:
    """A restarted agent refuses the first question, states its new instance, and answers the second."""
    client = agent.client()
    for _ in range(3):
        assert client.ask(PATH, b"where?", 10).body == SECRET + b"where?"
        assert client.ask(PATH, b"and now?", 10).body == SECRET + b"and now?"
        assert agent.echo.received == [b"where?", b"and now?"]
        agent = begin_instance(*current)


def test_longest_question(agent: Agent) -> None:
    """A question of the maximum length arrives whole."""
    body = b"x" * MAX_QUESTION
    assert agent.client().ask(PATH, body, 10).body == SECRET + body


def test_many_ask_at_once(agent: Agent) -> None:
    """Lines of several agents, each used by several threads, all get all of their answers."""
    clients = [agent.client() for _ in range(4)]
    missed: list[object] = []

    def ask(client: PeerClient, who: int) -> None:
        for turn in range(10):
            body = bytes([who, turn])
            if client.ask(PATH, body, 20).body != SECRET + body:
                missed.append((who, turn))

    threads = [
        threading.Thread(target=ask, args=(client, who)) for who, client in enumerate(itertools.chain(clients, clients))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert missed == []
    assert len(agent.echo.received) == 80


def test_requests_that_never_arrive_block_no_other_agent() -> None:
    """A client that knows the run's id but not its token cannot occupy all connections with unfinished questions."""
    behind = Current()
    with served(behind, most_clients=8) as port:
        check_others_are_answered(begin_instance(behind, port))


def check_others_are_answered(agent: Agent) -> None:
    """Eight clients that send half a question each do not keep one of the run waiting."""
    request = request_bytes(headers_for(agent, token=OTHER_TOKEN), b"").replace(b"Length: 0", b"Length: 1000")
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection((HOST, agent.port), timeout=10)) for _ in range(8)]
        for client in slow:
            client.sendall(request)
        client = agent.client()
        for body in (b"one", b"two"):
            assert client.ask(PATH, body, 5).body == SECRET + body
    assert agent.echo.received == [b"one", b"two"]
