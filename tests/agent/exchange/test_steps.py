"""The calls of some steps, asked from one agent to the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from otel_torchdist.agent.exchange.peer import MAX_STEPS_ANSWER
from tests.agent.exchange.peer_agents import Agents, agents, exchange_of
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN


@pytest.fixture
def three() -> Iterator[Agents]:
    """Three nodes that have met; what they answer is up to the test."""
    with agents(3) as made:
        yield made


def meet(made: Agents) -> None:
    """Start the agents, and let the first one learn of the ranks of the others."""
    made.begin()
    until(lambda: made.judges() == [True, False, False] and len(exchange_of(made, 0).ask_for_steps(b"", 5)) == 2)


def test_all_others_answer_for_their_ranks(three: Agents) -> None:
    """Each gets the run and the question; an agent without an answer is shown as one."""
    asked: list[tuple[int, bytes]] = []

    def answer(run: int, question: bytes) -> bytes | None:
        asked.append((run, question))
        return b"calls" if question else None

    three.nodes[1].steps = answer
    meet(three)
    asked.clear()
    assert exchange_of(three, 0).ask_for_steps(b"7 22", 5) == [(b"calls", 2), (b"", 2)]
    assert asked == [(RUN, b"7 22")]


def test_a_slow_answer_keeps_no_question_about_stalls_waiting(three: Agents) -> None:
    """While an agent reads its tapes it goes on answering, and is not taken for lost."""
    gate = threading.Event()

    def slow(run: int, question: bytes) -> bytes | None:
        gate.wait(30) if question else None
        return b"calls"

    three.nodes[1].steps = slow
    meet(three)
    asking = threading.Thread(target=exchange_of(three, 0).ask_for_steps, args=(b"7 22", 20.0))
    asking.start()
    three.set_suspicion(True)
    until(lambda: three.judges() == [True, False, False])
    began = time.monotonic()
    others = exchange_of(three, 0).others
    while time.monotonic() - began < 3 * three.pace.hurried_timeout_s:
        assert three.judges() in ([True, False, False], [None, False, False])  # undecided after a pause of this test
        assert not any(other.is_lost for other in others)
        time.sleep(0.05)
    until(lambda: three.judges() == [True, False, False])
    assert asking.is_alive()
    gate.set()
    asking.join(10)
    assert not asking.is_alive()


def test_an_agent_that_does_not_answer_in_time(three: Agents) -> None:
    """The deadline holds for all together, and what came in time is used."""
    gate = threading.Event()
    three.nodes[1].steps = lambda run, question: b"calls"
    three.nodes[2].steps = lambda run, question: b"late" if not question or gate.wait(30) else None
    meet(three)
    began = time.monotonic()
    assert exchange_of(three, 0).ask_for_steps(b"7 22", 1.0) == [(b"calls", 2), (b"", 2)]
    assert time.monotonic() - began < 4.5
    gate.set()


def test_answers_are_bounded(three: Agents) -> None:
    """Hundreds of nodes may answer at the same time: what is longer than a node's calls can be counts as no answer."""
    three.nodes[1].steps = lambda run, question: bytes(MAX_STEPS_ANSWER + bool(question))
    three.nodes[2].steps = lambda run, question: bytes(MAX_STEPS_ANSWER)
    meet(three)
    [(first, _), (second, _)] = exchange_of(three, 0).ask_for_steps(b"7 22", 10)
    assert (len(first), len(second)) == (0, MAX_STEPS_ANSWER)
