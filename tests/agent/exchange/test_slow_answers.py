"""Agents of busy nodes, which answer late or look at their ranks rarely: what their times and ranks are worth."""

from __future__ import annotations

import dataclasses
import time

from otel_torchdist.agent.exchange.client import SignedAnswer
from otel_torchdist.agent.exchange.peer import DRIFT, ClockReading, PeerAgent
from otel_torchdist.agent.exchange.wire import wire_ruling
from otel_torchdist.judge.stall.events import Leads, Undecided
from otel_torchdist.node.job.peers import Peer
from tests.agent.exchange.listening import HOST
from tests.agent.exchange.peer_agents import QUICK, TOKEN, Agents
from tests.agent.exchange.test_passed_on import ruling
from tests.support.waiting import until
from tests.support.worlds.fake_world import RUN, SECOND

MS = 1_000_000
AHEAD_NS = 1000 * SECOND
"""Their clock minus ours."""


def reading(asked_ms: int, there_ms: int, heard_ms: int, ahead_ns: int = AHEAD_NS) -> ClockReading:
    """What an answer shows that was written at some moment of our clock."""
    return ClockReading.of(SignedAnswer(b"", asked_ms * MS, heard_ms * MS), there_ms * MS + ahead_ns)


def test_error_of_a_late_answer() -> None:
    """Wherever between question and answer their clock was read, the difference is off by no more than the error."""
    for there_ms in (100, 250, 700):
        found = reading(100, there_ms, 700)
        assert abs(found.offset_ns + AHEAD_NS) <= found.error_ns == 300 * MS


def test_prompt_answer_counts_longer_than_a_late_one() -> None:
    """Times do not jump with each answer; the error grows by what clocks may have run apart since."""
    prompt = reading(100, 102, 104)
    kept = reading(5_000, 5_600, 5_610).or_more_precise(prompt)
    assert kept is prompt
    assert kept.error_at(5_610 * MS) == 2 * MS + 5_506 * MS // DRIFT
    better = reading(6_000, 6_001, 6_002)
    assert better.or_more_precise(kept) is better


def test_clock_that_jumped() -> None:
    """The clock of a node that was suspended has stood still: what was known of it before is given up."""
    late = reading(60_000, 60_300, 60_600, AHEAD_NS - 30 * SECOND)
    assert late.or_more_precise(reading(100, 102, 104)) is late


def test_answers_with_ranks_that_were_looked_at_long_ago(two: Agents) -> None:
    """An agent that answers but does not read: its ranks of before are not judged, until that has taken too long."""
    two.pace = dataclasses.replace(QUICK, hold_s=2.0)
    two.begin()
    two.wait_until_judges(True, False)
    two.set_suspicion(True)
    began = time.monotonic()
    until(lambda: isinstance(two.meet()[0], Leads))
    until(lambda: isinstance(two.nodes[0].meet(), Undecided))  # the other one does not meet any more
    until(lambda: isinstance(two.nodes[0].meet(), Leads))
    assert time.monotonic() - began >= two.pace.hold_s


def test_ruling_in_a_question_that_was_not_answered() -> None:
    """It is sent again with the next question, though it is over by then; not to an agent that is out of reach."""
    other = PeerAgent(Peer(2, "node-2", HOST, 1, 2), RUN, TOKEN, "instance")  # no process listens on port 1
    assert not other.ask(other.question(0, True, (0, 1), ruling()), 1.0)
    again = other.question(0, True, (0, 1), None)
    assert again.ruling == wire_ruling(ruling())
    assert other.question(0, True, (0, 1), None).ruling is None
    assert not other.ask(again, 1.0)
    assert other.is_lost and other.question(0, True, (0, 1), None).ruling is None
