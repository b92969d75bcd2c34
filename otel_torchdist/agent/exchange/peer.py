"""Another agent, as seen by the agent that queries it: its ranks, and whether it answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.agent.exchange.client import (
    NoAnswerError,
    OtherProtocolError,
    PeerClient,
    SignedAnswer,
    new_instance,
)
from otel_torchdist.agent.exchange.codec import views_of
from otel_torchdist.agent.exchange.pace import PACE, ExchangePace
from otel_torchdist.agent.exchange.versions import MAX_VERSION, ProtocolRefusal
from otel_torchdist.agent.exchange.wire import Question, WireError, WireRuling, decode_answer, encode, wire_ruling
from otel_torchdist.formats import EXCHANGE
from otel_torchdist.judge.stall.events import Ruling, StacksOverdue, StacksWanted
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.ids import run_label
from otel_torchdist.model.rank_state.rescue import Rescue
from otel_torchdist.model.snapshot import RankView
from otel_torchdist.model.text import readable
from otel_torchdist.node.job.peers import Peer
from otel_torchdist.package import package_version

STATE_PATH: Final = f"/v{EXCHANGE.number}/state"
WAKE_PATH: Final = f"/v{EXCHANGE.number}/wake"
STEPS_PATH: Final = f"/v{EXCHANGE.number}/steps"
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
        received_ns: Time of the answer, on our clock.
    """

    offset_ns: int
    error_ns: int
    received_ns: int

    @classmethod
    def of(cls, signed: SignedAnswer, their_ns: int) -> ClockReading:
        """Return the reading from an answer in which the other clock showed `their_ns`."""
        middle_ns = (signed.sent_ns + signed.received_ns) // 2
        return cls(middle_ns - their_ns, signed.received_ns - middle_ns, signed.received_ns)

    def error_at(self, now_ns: int) -> int:
        """Return the maximum error of the offset at a later time, with drift."""
        return self.error_ns + (now_ns - self.received_ns) // DRIFT

    def or_more_precise(self, known: ClockReading | None) -> ClockReading:
        """Return the known reading if it is more precise and does not contradict this one, else this one.

        They contradict each other if a node was suspended in between.
        """
        if known is None:
            return self
        known_error_ns = known.error_at(self.received_ns)
        agrees = abs(known.offset_ns - self.offset_ns) <= known_error_ns + self.error_ns
        return known if agrees and known_error_ns < self.error_ns else self


class PeerAgent:
    """One agent of the run.

    Attributes:
        peer: Address and node name.
        views: The ranks in its last answer.
        suspects_stall: Whether it suspected a stall in its last answer.
        unanswered: Number of consecutive questions without an answer.
        refusal: Its last answer, if it is of a version with another protocol; None otherwise. It then counts as out of
            reach, at once.
        off_wall_ns: When recording was switched off on some node, as of its last answer; 0 if it was not.
        tapes_read_ns: Lower bound, on our clock, of the time at which it last read these ranks' tapes.
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
        self.refusal: ProtocolRefusal | None = None
        self._other_version = ""
        self.off_wall_ns = 0
        self.tapes_read_ns = 0
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
        """Whether the last question was not answered, but fewer than `LOST_AFTER` in a row."""
        return 0 < self.unanswered < LOST_AFTER

    def is_behind(self, moment_ns: int) -> bool:
        """Return whether the agent answers, but has not read its live ranks' tapes since a time on our clock."""
        return not self.is_lost and self.tapes_read_ns < moment_ns and any(view.alive for view in self.views)

    def is_due(self, now: float) -> bool:
        """Return whether the agent should be asked in this round."""
        return now >= self._next_at

    def request_stacks(self, request: StacksWanted | StacksOverdue) -> bool:
        """Ask for stacks with the next question; return whether any of the ranks is on this agent's node."""
        nonces = request.nonces & {view.nonce for view in self.views}
        (self._stacks if isinstance(request, StacksWanted) else self._signals).update(nonces)
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
        off_wall_ns: int = 0,
    ) -> Question:
        """Return the next question, with the pending requests for stacks and an undelivered ruling, and clear both."""
        pending = wire_ruling(ruling) or self._undelivered_ruling, tuple(self._stacks), tuple(self._signals)
        self._undelivered_ruling, self._stacks, self._signals = None, set(), set()
        return Question(
            agent_id, is_hurried, tuple(ranks), *pending, tuple(calls), page, dict(rescues or {}), off_wall_ns
        )

    def ask(self, question: Question, timeout_s: float) -> bool:
        """Ask the agent for its ranks; return whether it answers."""
        try:
            signed = self._client.ask(STATE_PATH, encode(question), timeout_s)
            answer = decode_answer(signed.body)
            self._clock = clock = ClockReading.of(signed, answer.now_ns).or_more_precise(self._clock)
            error_ns, wall_offset_ns = clock.error_at(signed.received_ns), time.time_ns() - time.monotonic_ns()
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
        self.views, self.suspects_stall, self.unanswered, self.refusal = views, answer.suspects_stall, 0, None
        self._note_version(readable(answer.version, MAX_VERSION))
        self.tapes_read_ns = signed.sent_ns - max(answer.age_ns, 0)
        self.off_wall_ns = answer.off_wall_ns
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
        """Return the calls of its ranks in the steps that `question` names; empty if it does not answer."""
        try:
            return self._slow_client.ask(STEPS_PATH, question, timeout_s, MAX_STEPS_ANSWER).body
        except NoAnswerError as error:
            _logger.debug("the agent on %s sends no steps: %s", self.peer.node, error)
            return b""

    def _note_version(self, version: str) -> None:
        """Log the version of an agent with the same protocol once, if it is another one."""
        if version not in ("", self._other_version, package_version()):
            _logger.info(
                "the agent on %s is of otel-torchdist %s, this one of %s: they exchange data (protocol %d)",
                self.peer.node, version, package_version(), EXCHANGE.number,
            )  # fmt: skip
        self._other_version = version

    def _note_refusal(self, refusal: ProtocolRefusal) -> None:
        known, self.refusal = self.refusal, refusal
        self.unanswered = LOST_AFTER
        self._next_at = time.monotonic() + self._pace.lost_round_s
        if known is None or (known.protocol, known.version) != (refusal.protocol, refusal.version):
            _logger.warning(
                "the agent on %s is of otel-torchdist %s (exchange protocol %d), this one of %s (protocol %d): they "
                "exchange no data, and its ranks are unknown until the agents of run %s are upgraded to one version",
                self.peer.node, refusal.version, refusal.protocol, package_version(), EXCHANGE.number,
                run_label(self._run),
            )  # fmt: skip

    def _note_failure(self, error: Exception) -> None:
        self.suspects_stall = False
        if isinstance(error, OtherProtocolError):
            self._note_refusal(error.refusal)
            return
        self.unanswered, self.refusal = self.unanswered + 1, None
        if self.is_lost and self.unanswered == LOST_AFTER:
            _logger.warning(
                "the agent on %s (%s:%d) does not answer: %s; its ranks are unknown until it does",
                self.peer.node, self.peer.host, self.peer.port, error,
            )  # fmt: skip
        if self.unanswered >= LOST_AFTER:
            self._next_at = time.monotonic() + self._pace.lost_round_s
