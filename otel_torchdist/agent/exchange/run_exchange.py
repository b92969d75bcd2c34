"""One agent's part in the exchange about a run: it answers with its snapshots and, if it judges, queries all others.

Code that waits for the network runs on separate threads; the thread that reads tapes only fetches the results.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from otel_torchdist import guard
from otel_torchdist.agent.exchange.codec import answer_of
from otel_torchdist.agent.exchange.merging import all_ranks
from otel_torchdist.agent.exchange.pace import PACE, Election, ExchangePace
from otel_torchdist.agent.exchange.peer import STATE_PATH, STEPS_PATH, WAKE_PATH, PeerAgent
from otel_torchdist.agent.exchange.steps import WORKERS, AnswerSteps, no_steps, steps_of
from otel_torchdist.agent.exchange.versions import refuse_protocol
from otel_torchdist.agent.exchange.wire import Answer, Question, WireError, decode_question, encode, ruling_from
from otel_torchdist.judge.stall.events import (
    Follows,
    JudgingAgent,
    Leads,
    Role,
    Ruling,
    StacksOverdue,
    StacksWanted,
    Undecided,
)
from otel_torchdist.judge.stall.watch import CHECK_S
from otel_torchdist.model.calls import Channel
from otel_torchdist.model.rank_state.rescue import Rescue
from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.model.text import MemberRank
from otel_torchdist.node.job.peers import MAX_AGENT_ID, MAX_PEERS, Peers
from otel_torchdist.package import package_version

PEACEFUL_ROUND_S_PER_AGENT: Final = 0.012
ROUND_S_PER_AGENT: Final = 0.002
"""Seconds added to a pause per agent: the time to process one answer, with a margin."""
SHORTEST_PAUSE_S: Final = 0.05
MAX_CALLS: Final = 16
"""Maximum windows of calls to request at once."""
MAX_SENT: Final = 3
"""Snapshots to keep after they were sent: the judging agent requests calls only after it has compared digests."""

_logger = logging.getLogger("otel_torchdist")


class RunExchange:
    """The exchange about one run.

    Attributes:
        token: See `Respondent`.
        page: Address of this agent's live page, for the other agents to show; '' for none.
    """

    def __init__(
        self, peers: Peers, instance: str, page: str = "", steps: AnswerSteps = no_steps, pace: ExchangePace = PACE
    ) -> None:
        """Start the exchange with the peers known so far.

        Args:
            peers: The peers.
            instance: Instance name of this agent process.
            page: See `page` above.
            steps: Answers questions about the calls of some steps.
            pace: The timing.
        """
        self._pace = pace
        self.token, self.page = peers.token, page
        self._steps = steps
        self._run, self._instance, self._own_id = peers.run, instance, peers.own_id
        self._election = Election(peers.own_id, pace)
        self._others: dict[int, PeerAgent] = {}
        self._ranks_of: dict[int, frozenset[int]] = {}
        self._page_of_judge = ""
        self._changed = threading.Condition()
        self._has_changed = False
        self._local_world: WorldSnapshot | None = None
        self._off_wall_ns = 0
        self._suspects_since: float | None = None
        self._judges_since: float | None = None
        self._round_began = float("-inf")
        self._hurried_at = float("-inf")
        self._is_woken = self._was_hurried = False
        self._received_ruling: Ruling | None = None
        self._unread_ruling: Ruling | None = None
        self._published_ruling: Ruling | None = None
        self._unsent_ruling: Ruling | None = None
        self._stack_requests: set[int] = set()
        self._signal_requests: set[int] = set()
        self._wanted_calls: tuple[tuple[Channel, int], ...] = ()
        self._rescues: Mapping[int, Rescue] = {}
        self._judges_rescues: Mapping[int, Rescue] = {}
        self._sent: deque[WorldSnapshot] = deque(maxlen=MAX_SENT)
        self._stopping = False
        self.renew(peers)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="torchdist-exchange")
        self._thread = threading.Thread(target=self._run_rounds, name="torchdist-exchange", daemon=True)
        self._thread.start()

    @property
    def others(self) -> tuple[PeerAgent, ...]:
        """The other agents known so far."""
        with self._changed:
            return tuple(self._others.values())

    def renew(self, peers: Peers) -> None:
        """Add newly announced peers."""
        with self._changed:
            for peer in peers.others:
                known = self._others.get(peer.agent_id)
                if peer.agent_id != self._own_id and (known is None or known.peer != peer):
                    self._others[peer.agent_id] = PeerAgent(peer, self._run, self.token, self._instance, self._pace)
            self._wake()

    def stop(self) -> None:
        """Stop asking, without waiting for the threads, which may be in the middle of a question."""
        with self._changed:
            self._stopping = True
            self._wake()

    def join(self) -> None:
        """Wait for the thread of an exchange that has been stopped."""
        self._thread.join(self._pace.peaceful_timeout_s + 1)

    # --- on the thread that reads tapes ---------------------------------------------------------------------------

    def meet(self, world: WorldSnapshot, suspects_stall: bool) -> Role:
        """See `PeerAgents`."""
        now = time.monotonic()
        with self._changed:
            self._local_world = world
            self._hear_of_switch(world.switched_off_wall_ns)
            if suspects_stall != (self._suspects_since is not None):
                self._suspects_since = now if suspects_stall else None
                self._wake()
            if self._judge(now) != self._own_id:
                self._published_ruling = self._unsent_ruling = None
                received, self._unread_ruling = self._unread_ruling or self._received_ruling, None
                is_hurried = now - self._hurried_at < self._pace.hurried_trust_s
                return Follows(received, is_hurried, self._judging_agent(now), self._judges_rescues, self._off_wall_ns)
            merged = all_ranks(world, self._others.values(), self._ranks_of)
            self._hear_of_switch(merged.switched_off_wall_ns)
            self._rescues = merged.rescues
            if self._suspects_since is None or self._judges_since is None:
                return Leads(merged, self._own_id, self._off_wall_ns)
            since = max(self._suspects_since, self._judges_since)
            # Older views may predate a death whose consequences this node has seen already.
            oldest_ns = round(max(since - CHECK_S, now - 2 * self._pause_s() - CHECK_S) * 1e9)
            is_in_doubt = any(other.is_in_doubt or other.is_behind(oldest_ns) for other in self._others.values())
            if self._others and (self._round_began < since or is_in_doubt) and now - since < self._pace.hold_s:
                return Undecided()
            return Leads(merged, self._own_id, self._off_wall_ns)

    def _judge(self, now: float) -> int:
        """Return the id of the judging agent. Note when this agent becomes it: a new judge has no answers yet."""
        judge = self._election.judge(now)
        if judge != self._own_id:
            self._judges_since = None
        elif self._judges_since is None:
            self._judges_since = now
        return judge

    def _judging_agent(self, now: float) -> JudgingAgent:
        judge = self._others.get(self._election.judge(now))
        return JudgingAgent(judge.peer.node if judge is not None else "", self._page_of_judge)

    def publish(self, ruling: Ruling | None) -> None:
        """See `PeerAgents`."""
        if ruling is not self._published_ruling:
            with self._changed:
                self._published_ruling = ruling
                # The last verdict on an ending job is withdrawn a moment later, but peers must receive it.
                self._unsent_ruling = ruling or self._unsent_ruling
                self._wake()

    def want_calls(self, windows: frozenset[tuple[Channel, int]]) -> None:
        """See `PeerAgents`."""
        wanted = tuple(sorted(windows))[:MAX_CALLS]
        if wanted != self._wanted_calls:
            with self._changed:
                self._wanted_calls = wanted
                self._wake()

    def request_stacks(self, wanted: StacksWanted | StacksOverdue) -> None:
        """See `PeerAgents`."""
        with self._changed:
            for other in self._others.values():
                if other.request_stacks(wanted):
                    self._wake()

    def requested_stacks(self) -> list[StacksWanted | StacksOverdue]:
        """See `PeerAgents`."""
        with self._changed:
            wanted = StacksWanted(frozenset(self._stack_requests))
            overdue = StacksOverdue(frozenset(self._signal_requests))
            self._stack_requests, self._signal_requests = set(), set()
        return [request for request in (wanted, overdue) if request.nonces]

    # --- on any thread --------------------------------------------------------------------------------------------

    def ask_for_steps(self, question: bytes, timeout_s: float) -> list[tuple[bytes, int]]:
        """Ask all other agents that answer for the calls of some steps; see `steps_of`."""
        with self._changed:
            others = [other for other in self._others.values() if other.views and not other.is_lost]
        return steps_of(others, question, timeout_s)

    # --- on threads of the server ---------------------------------------------------------------------------------

    def respond(self, path: str, body: bytes) -> bytes | None:
        """See `Respondent`."""
        if path == STEPS_PATH:
            return self._steps(self._run, body)
        if path not in (STATE_PATH, WAKE_PATH):
            return None
        if path == WAKE_PATH:
            with self._changed:
                self._is_woken = True
                self._wake()
            return encode(self._without_ranks(self._suspects_since is not None))
        question = decode_question(body)
        with self._changed:
            self._take_question(question)
            world, earlier = self._local_world, list(self._sent)
            suspects_stall = self._suspects_since is not None
            if world is not None:
                self._sent.appendleft(world)
        if world is None:
            return encode(self._without_ranks(suspects_stall))
        now_ns = time.monotonic_ns()
        answer = answer_of(world, self._own_id, suspects_stall, now_ns, question.calls, earlier)
        version = package_version()
        age_ns = now_ns - (world.looked_ns or now_ns)
        return encode(replace(answer, age_ns=age_ns, off_wall_ns=self._off_wall_ns, version=version))

    def _without_ranks(self, suspects_stall: bool) -> Answer:
        return Answer(self._own_id, time.monotonic_ns(), suspects_stall, version=package_version())

    def refuse(self) -> bytes:
        """See `Respondent`."""
        with self._changed:
            return refuse_protocol(self._own_ranks)

    def _take_question(self, question: Question) -> None:
        """Process a question from the judging agent, or from an agent that does not know yet that we are alive."""
        if question.agent_id == self._own_id or not 0 <= question.agent_id <= MAX_AGENT_ID:
            raise WireError("no other agent can have its id")
        self._hear_of_switch(question.off_wall_ns)
        self._stack_requests.update(question.stacks)
        self._signal_requests.update(question.signals)
        # The asking agent may be announced to us only later, and may be out of reach by then.
        if question.agent_id in self._ranks_of or len(self._ranks_of) < MAX_PEERS:
            self._ranks_of[question.agent_id] = frozenset(question.ranks)
        if question.agent_id > self._own_id:
            self._is_woken |= question.is_hurried
            self._wake()
            return
        now = time.monotonic()
        if question.is_hurried:
            self._hurried_at = now
        self._election.asked_by(question.agent_id, now, question.is_hurried)
        self._page_of_judge = question.page
        self._judges_rescues = question.rescues
        self._received_ruling = ruling_from(question.ruling, self._run)
        # An unread ruling is kept until it is read, even if the judging agent withdraws it first.
        self._unread_ruling = self._received_ruling or self._unread_ruling

    # --- on the thread of the exchange ----------------------------------------------------------------------------

    def _run_rounds(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            with guard.guarded("the exchange with other agents"):
                self._run_round(began)
            with self._changed:
                self._changed.wait(SHORTEST_PAUSE_S)
                if not self._has_changed and not self._stopping:
                    self._changed.wait(max(self._pause_s() - (time.monotonic() - began), 0.0))
                self._has_changed = False
        self._pool.shutdown(wait=False)

    def _run_round(self, now: float) -> None:
        with self._changed:
            judge, others = self._judge(now), dict(self._others)
            is_hurried = self._is_hurried
            if judge != self._own_id:  # only the judging agent's answers are current
                for other in others.values():
                    other.suspects_stall = False
            is_neglected = self._suspects_since is not None and now - self._hurried_at > self._pace.wake_after_s
            if self._local_world is None:  # the run is over, or not seen yet
                return
        if judge == self._own_id:
            self._ask_all(list(others.values()), now, is_hurried)
        # The judging agent may not be announced yet.
        elif is_neglected and judge in others and not others[judge].wake(self._pace.hurried_timeout_s):
            with self._changed:
                self._election.silent(judge, now)
                self._wake()

    def _ask_all(self, others: list[PeerAgent], now: float, is_hurried: bool) -> None:
        timeout_s = self._pace.hurried_timeout_s if is_hurried else self._pace.peaceful_timeout_s
        with self._changed:
            self._is_woken = False
            # Agents that answer come first: silent agents block the workers until their timeout.
            due = sorted((other for other in others if other.is_due(now)), key=lambda other: other.unanswered)
            ruling, calls, self._unsent_ruling = self._published_ruling or self._unsent_ruling, self._wanted_calls, None
            shared = (ruling, calls, self.page, self._rescues, self._off_wall_ns)
            questions = [other.question(self._own_id, is_hurried, self._own_ranks, *shared) for other in due]
        answers = self._pool.map(functools.partial(PeerAgent.ask, timeout_s=timeout_s), due, questions)
        has_answered = dict(zip((other.peer.agent_id for other in due), answers, strict=True))
        with self._changed:
            self._round_began, self._was_hurried = now, is_hurried
            for other in due:
                self._hear_of_switch(other.off_wall_ns)
            for agent_id in [agent_id for agent_id in has_answered if agent_id < self._own_id]:
                if has_answered[agent_id]:
                    self._election.answered(agent_id, time.monotonic())
                else:
                    self._election.silent(agent_id, now)

    def _hear_of_switch(self, off_wall_ns: int) -> None:
        """Remember that recording was switched off on some node, also once that node's agent has left."""
        if not self._off_wall_ns:
            self._off_wall_ns = min(max(off_wall_ns, 0), time.time_ns())

    @property
    def _own_ranks(self) -> tuple[int, ...]:
        """The ranks of this node, without processes of other worlds, whose numbers mean nothing elsewhere."""
        ranks = self._local_world.ranks if self._local_world is not None else ()
        return tuple(rank for rank in sorted(ranks) if not isinstance(rank, MemberRank))

    @property
    def _is_hurried(self) -> bool:
        others = self._others.values()
        return self._is_woken or self._suspects_since is not None or any(other.suspects_stall for other in others)

    def _pause_s(self) -> float:
        # After a hurried round, ask the first peaceful question at once: a hurried question is trusted only briefly.
        if not self._is_hurried and not self._was_hurried:
            return self._pace.peaceful_round_s + PEACEFUL_ROUND_S_PER_AGENT * len(self._others)
        return self._pace.hurried_round_s + ROUND_S_PER_AGENT * len(self._others)

    def _wake(self) -> None:
        self._has_changed = True
        self._changed.notify_all()
