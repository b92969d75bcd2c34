"""Another agent, as seen by the agent that queries it: its ranks, and whether it answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.agent.exchange.client import NoAnswerError, PeerClient, SignedAnswer, new_instance
from otel_torchdist.agent.exchange.codec import views_of
from otel_torchdist.agent.exchange.pace import PACE, ExchangePace
from otel_torchdist.agent.exchange.wire import Question, WireError, WireRuling, decode_answer, encode, wire_ruling
from otel_torchdist.judge.stall.events import Ruling, StacksOverdue, StacksWanted
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.rescue import Rescue
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.node.job.peers import Peer

STATE_PATH: Final = "/v1/state"
WAKE_PATH: Final = "/v1/wake"
STEPS_PATH: Final = "/v1/steps"
MAX_STEPS_ANSWER: Final = 1 << 20
LOST_AFTER: Final = 2
"""Consecutive questions without an answer after which an agent is out of reach."""
DRIFT: Final = 10_000
"""Two nodes' clocks are assumed to drift apart by at most 1/DRIFT, which is more than quartz and NTP leave."""

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The offset between our monotonic clock and another agent's, measured with one question and its answer.

    Attributes:
        offset_ns: Our clock minus the other, assuming that the other was read halfway between question and answer.
        error_ns: Maximum error of the offset: half the round trip.
        heard_ns: Time of the answer, on our clock.
    """

    offset_ns: int
    error_ns: int
    heard_ns: int

    @classmethod
    def of(cls, signed: SignedAnswer, their_ns: int) -> ClockReading:
        """Return the reading from an answer in which the other clock showed `their_ns`."""
        middle_ns = (signed.asked_ns + signed.heard_ns) // 2
        return cls(middle_ns - their_ns, signed.heard_ns - middle_ns, signed.heard_ns)

    def error_at(self, now_ns: int) -> int:
        """Return the maximum error of the offset at a later time, with drift."""
        return self.error_ns + (now_ns - self.heard_ns) // DRIFT

    def or_more_precise(self, known: ClockReading | None) -> ClockReading:
        """Return the known reading if it is more precise and does not contradict this one, else this one.

        They contradict each other if a node was suspended in between.
        """
        if known is None:
            return self
        known_error_ns = known.error_at(self.heard_ns)
        agrees = abs(known.offset_ns - self.offset_ns) <= known_error_ns + self.error_ns
        return known if agrees and known_error_ns < self.error_ns else self


class PeerAgent:
    """One agent of the run.

    Attributes:
        peer: Address and node name.
        views: The ranks in its last answer.
        suspects_stall: Whether it suspected a stall in its last answer.
        unanswered: Number of consecutive questions without an answer.
        looked_ns: Lower bound, on our clock, of the time at which it last read these ranks' tapes.
    """

    def __init__(self, peer: Peer, run: int, token: bytes, own_instance: str, pace: ExchangePace = PACE) -> None:
        self.peer = peer
        self._pace = pace
        self.views: tuple[RankView, ...] = ()
        self.suspects_stall = False
        self._run = run
        self._client = PeerClient(peer, run, token, own_instance)
        # A second client with its own request numbers, so that slow answers do not delay questions about stalls.
        self._slow_client = PeerClient(peer, run, token, new_instance())
        self.unanswered = 0
        self.looked_ns = 0
        self._clock: ClockReading | None = None
        self._next_at = 0.0
        self._stacks: set[int] = set()
        self._signals: set[int] = set()
        self._undelivered_ruling: WireRuling | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the agent is out of reach and may have live ranks. It exits when all its ranks have ended."""
        return self.unanswered >= LOST_AFTER and (not self.views or any(view.alive for view in self.views))

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last question was not answered, but too few in a row to consider the agent out of reach."""
        return 0 < self.unanswered < LOST_AFTER

    def is_behind(self, moment_ns: int) -> bool:
        """Return whether the agent answers, but has not read its live ranks' tapes since a time on our clock."""
        return not self.is_lost and self.looked_ns < moment_ns and any(view.alive for view in self.views)

    def is_due(self, now: float) -> bool:
        """Return whether the agent should be asked in this round."""
        return now >= self._next_at

    def want(self, wanted: StacksWanted | StacksOverdue) -> bool:
        """Ask for stacks of this agent's ranks, with the next question; return whether any of the ranks is its own."""
        nonces = wanted.nonces & {view.nonce for view in self.views}
        (self._stacks if isinstance(wanted, StacksWanted) else self._signals).update(nonces)
        return bool(nonces)

    def question(
        self,
        agent_id: int,
        is_hurried: bool,
        ranks: Iterable[int],
        ruling: Ruling | None,
        calls: Iterable[tuple[Channel, int]] = (),
        page: str = "",
        rescues: Mapping[int, Rescue] | None = None,
    ) -> Question:
        """Return the next question, with the pending requests for stacks and an undelivered ruling, and clear both."""
        news = wire_ruling(ruling) or self._undelivered_ruling, tuple(self._stacks), tuple(self._signals)
        self._undelivered_ruling, self._stacks, self._signals = None, set(), set()
        return Question(agent_id, is_hurried, tuple(ranks), *news, tuple(calls), page, dict(rescues or {}))

    def ask(self, question: Question, timeout_s: float) -> bool:
        """Ask the agent for its ranks; return whether it answers."""
        try:
            signed = self._client.ask(STATE_PATH, encode(question), timeout_s)
            answer = decode_answer(signed.body)
            self._clock = clock = ClockReading.of(signed, answer.now_ns).or_more_precise(self._clock)
            error_ns, wall_offset_ns = clock.error_at(signed.heard_ns), time.time_ns() - time.monotonic_ns()
            views = views_of(answer, self._run, clock.offset_ns, wall_offset_ns, error_ns)
        except (NoAnswerError, WireError) as error:
            self._stacks.update(question.stacks)
            self._signals.update(question.signals)
            self._note_failure(error)
            # The last ruling on an ending job may be withdrawn before the next question, but must be sent.
            self._undelivered_ruling = question.ruling if self.is_in_doubt else None
            return False
        if self.is_lost:
            _logger.info("the agent on %s answers again", self.peer.node)
        self.views, self.suspects_stall, self.unanswered = views, answer.suspects_stall, 0
        self.looked_ns = signed.asked_ns - max(answer.age_ns, 0)
        return True

    def wake(self, timeout_s: float) -> bool:
        """Wake the agent, because a stall is near; return whether it answers."""
        try:
            self._client.ask(WAKE_PATH, b"", timeout_s)
        except NoAnswerError as error:
            self._note_failure(error)
            return False
        return True

    def steps(self, question: bytes, timeout_s: float) -> bytes:
        """Return the calls of its ranks in some steps; empty if it does not answer."""
        try:
            return self._slow_client.ask(STEPS_PATH, question, timeout_s, MAX_STEPS_ANSWER).body
        except NoAnswerError as error:
            _logger.debug("the agent on %s sends no steps: %s", self.peer.node, error)
            return b""

    def _note_failure(self, error: Exception) -> None:
        self.unanswered += 1
        self.suspects_stall = False
        if self.is_lost and self.unanswered == LOST_AFTER:
            _logger.warning(
                "the agent on %s (%s:%d) does not answer: %s; its ranks are unknown until it does",
                self.peer.node, self.peer.host, self.peer.port, error,
            )  # fmt: skip
        if self.unanswered >= LOST_AFTER:
            self._next_at = time.monotonic() + self._pace.lost_round_s
