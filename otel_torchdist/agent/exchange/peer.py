"""Another agent, from the view of the one that queries it: its ranks, and whether it answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from otel_torchdist.agent.exchange.client import Answered, Line, NoAnswerError, new_instance
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
"""Clocks of two nodes are assumed to run apart by one part in so many: more than quartz and NTP leave."""

_logger = logging.getLogger("otel_torchdist")


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Our monotonic clock minus that of another agent, as one of its answers shows it.

    Attributes:
        offset_ns: The difference, if its clock was read halfway between question and answer.
        error_ns: By how much that may be wrong: on busy nodes, most of the time may have passed before or after.
        heard_ns: When the answer came.
    """

    offset_ns: int
    error_ns: int
    heard_ns: int

    @classmethod
    def of(cls, answered: Answered, their_ns: int) -> ClockReading:
        """What an answer shows in which its clock stood at `their_ns`."""
        middle_ns = (answered.asked_ns + answered.heard_ns) // 2
        return cls(middle_ns - their_ns, answered.heard_ns - middle_ns, answered.heard_ns)

    def error_at(self, now_ns: int) -> int:
        """By how much the difference may be wrong later."""
        return self.error_ns + (now_ns - self.heard_ns) // DRIFT

    def or_better(self, known: ClockReading | None) -> ClockReading:
        """An older reading, if it is more precise and does not contradict: a node may have been suspended since."""
        if known is None:
            return self
        known_error_ns = known.error_at(self.heard_ns)
        agrees = abs(known.offset_ns - self.offset_ns) <= known_error_ns + self.error_ns
        return known if agrees and known_error_ns < self.error_ns else self


class PeerAgent:
    """One agent of the run.

    Attributes:
        peer: Its address.
        views: The ranks that it sees, as of its last answer.
        suspects_stall: Whether it suspected a stall then.
        unanswered: Consecutive questions that it has not answered.
        looked_ns: Our clock when it had looked at these ranks, at the earliest.
    """

    def __init__(self, peer: Peer, run: int, token: bytes, own_instance: str, pace: ExchangePace = PACE) -> None:
        self.peer = peer
        self._pace = pace
        self.views: tuple[RankView, ...] = ()
        self.suspects_stall = False
        self._run = run
        self._line = Line(peer, run, token, own_instance)
        # What takes long must not keep questions about stalls waiting; their numbers grow independently.
        self._slow_line = Line(peer, run, token, new_instance())
        self.unanswered = 0
        self.looked_ns = 0
        self._clock: ClockReading | None = None
        self._next_at = 0.0
        self._stacks: set[int] = set()
        self._signals: set[int] = set()
        self._missed: WireRuling | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it is out of reach while its ranks may be alive; an agent exits when all of its ranks have ended."""
        return self.unanswered >= LOST_AFTER and (not self.views or any(view.alive for view in self.views))

    @property
    def is_in_doubt(self) -> bool:
        """Whether it did not answer, and the next question will show whether it is out of reach."""
        return 0 < self.unanswered < LOST_AFTER

    def is_behind(self, moment_ns: int) -> bool:
        """Whether it has not looked at its live ranks since a moment of our clock, though it answers."""
        return not self.is_lost and self.looked_ns < moment_ns and any(view.alive for view in self.views)

    def is_due(self, now: float) -> bool:
        """Whether it should be asked in this round."""
        return now >= self._next_at

    def want(self, wanted: StacksWanted | StacksOverdue) -> bool:
        """Have it request the wanted stacks from its ranks; returns whether it has any of these ranks."""
        here = wanted.nonces & {view.nonce for view in self.views}
        (self._stacks if isinstance(wanted, StacksWanted) else self._signals).update(here)
        return bool(here)

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
        """The next question, with all pending requests for stacks, and a ruling that it has missed; it clears both."""
        news = wire_ruling(ruling) or self._missed, tuple(self._stacks), tuple(self._signals)
        self._missed, self._stacks, self._signals = None, set(), set()
        return Question(agent_id, is_hurried, tuple(ranks), *news, tuple(calls), page, dict(rescues or {}))

    def ask(self, question: Question, timeout_s: float) -> bool:
        """Ask what it sees; False if it does not answer."""
        try:
            answered = self._line.ask(STATE_PATH, encode(question), timeout_s)
            answer = decode_answer(answered.body)
            self._clock = clock = ClockReading.of(answered, answer.now_ns).or_better(self._clock)
            error_ns, wall_offset_ns = clock.error_at(answered.heard_ns), time.time_ns() - time.monotonic_ns()
            views = views_of(answer, self._run, clock.offset_ns, wall_offset_ns, error_ns)
        except (NoAnswerError, WireError) as error:
            self._stacks.update(question.stacks)
            self._signals.update(question.signals)
            self._failed(error)
            # The last ruling on a job that ends is over before the next question.
            self._missed = question.ruling if self.is_in_doubt else None
            return False
        if self.is_lost:
            _logger.info("the agent on %s answers again", self.peer.node)
        self.views, self.suspects_stall, self.unanswered = views, answer.suspects_stall, 0
        self.looked_ns = answered.asked_ns - max(answer.age_ns, 0)
        return True

    def wake(self, timeout_s: float) -> bool:
        """Wake it, because a stall is near; False if it does not answer."""
        try:
            self._line.ask(WAKE_PATH, b"", timeout_s)
        except NoAnswerError as error:
            self._failed(error)
            return False
        return True

    def steps(self, question: bytes, timeout_s: float) -> bytes:
        """The calls of some steps of its ranks; empty if it does not answer."""
        try:
            return self._slow_line.ask(STEPS_PATH, question, timeout_s, MAX_STEPS_ANSWER).body
        except NoAnswerError as error:
            _logger.debug("the agent on %s sends no steps: %s", self.peer.node, error)
            return b""

    def _failed(self, error: Exception) -> None:
        self.unanswered += 1
        self.suspects_stall = False
        if self.is_lost and self.unanswered == LOST_AFTER:
            _logger.warning(
                "the agent on %s (%s:%d) does not answer: %s; its ranks are unknown until it does",
                self.peer.node, self.peer.host, self.peer.port, error,
            )  # fmt: skip
        if self.unanswered >= LOST_AFTER:
            self._next_at = time.monotonic() + self._pace.lost_round_s
