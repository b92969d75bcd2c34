"""One agent's side of the exchange by itself: questions by hand, and its end."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from otel_torchdist.exchange.peer import STATE_PATH, WAKE_PATH
from otel_torchdist.exchange.wire import Question, WireError, decode_answer, encode
from tests.exchange.listening import stranger
from tests.exchange.peer_agents import QUICK, Agents, agents, exchange_of
from tests.support.waiting import until


def test_what_is_no_question(two: Agents) -> None:
    """There are two paths; a question from our own or an impossible agent_id, or with no valid content, is refused."""
    two.nodes[0].begin(())
    exchange = exchange_of(two, 0)
    assert exchange.respond("/", b"") is None
    assert exchange.respond("/v1/state/", encode(Question(2))) is None
    for agent_id in (0, -1, 1 << 40):  # an id is a rank, and the lowest one judges
        with pytest.raises(WireError, match="no other agent can have its id"):
            exchange.respond(STATE_PATH, encode(Question(agent_id)))
    with pytest.raises(WireError):
        exchange.respond(STATE_PATH, b"")
    for path, body in ((STATE_PATH, encode(Question(2))), (WAKE_PATH, b"")):
        answer = exchange.respond(path, body)
        assert answer is not None
        assert decode_answer(answer).ranks == ()  # it has not seen any yet


def test_stop_leaves_no_threads() -> None:
    """Even during a question to a peer that never answers, an agent ends soon, and its threads with it."""

    def ours() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("torchdist-exchange")}

    gate, asked = threading.Event(), threading.Event()

    def silent(connection: object) -> None:
        asked.set()
        gate.wait(30)

    before = ours()
    with agents(1) as made, stranger(silent) as port:
        peer = dataclasses.replace(made.nodes[0].peer, agent_id=7, port=port)
        made.nodes[0].begin((peer,))
        made.set_suspicion(True)
        made.meet()
        assert asked.wait(10)
        began = time.monotonic()
        made.nodes[0].end()
        assert time.monotonic() - began < QUICK.peaceful_timeout_s + 2
        gate.set()
        until(lambda: ours() <= before)
