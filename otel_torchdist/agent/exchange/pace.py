"""The timing of the exchange between agents, and the election of the agent that judges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ExchangePace:
    """The timing of an exchange, in seconds. It is *hurried* while any agent suspects a stall, else *peaceful*.

    Attributes:
        peaceful_round_s: Interval between questions.
        hurried_round_s: Interval between questions.
        peaceful_timeout_s: Timeout of an answer.
        hurried_timeout_s: Timeout of an answer.
        hold_s: Longest time that a judgment waits for a first round of answers, and for proof that silent agents are
            out of reach: enough for one unanswered question at the peaceful timeout and one at the hurried timeout.
        wake_after_s: Time without a question after which an agent that suspects a stall wakes the judging agent.
        hurried_trust_s: Time after a hurried question during which its sender counts as alive.
        peaceful_trust_s: Time after a peaceful question during which its sender counts as alive.
        wake_trust_s: Time within which an agent with a lower id must start asking, once it has answered.
        lost_round_s: Interval between questions to an agent out of reach. Each question delays the other agents.
    """

    peaceful_round_s: float = 2.0
    hurried_round_s: float = 0.2
    peaceful_timeout_s: float = 1.5
    hurried_timeout_s: float = 0.7
    hold_s: float = 2.5
    wake_after_s: float = 1.0
    hurried_trust_s: float = 3.0
    peaceful_trust_s: float = 15.0
    wake_trust_s: float = 2.0
    lost_round_s: float = 2.0


PACE: Final = ExchangePace()
"""The pace of agents in production."""


# --- election ---------------------------------------------------------------------------------------------------------
# Elects the agent that judges: the live agent with the lowest id. Pure; time is passed in.


class Election:
    """The election of the judging agent, as one agent sees it. It tracks the live agents with lower ids."""

    def __init__(self, own_id: int, pace: ExchangePace = PACE) -> None:
        self.own_id = own_id
        self._pace = pace
        self._trusted_until: dict[int, float] = {}
        self._asked_at: dict[int, float] = {}
        self._woken_at: dict[int, float] = {}

    def asked_by(self, agent_id: int, now: float, is_hurried: bool) -> None:
        """Record a question from an agent, which shows that it judges."""
        self._woken_at.pop(agent_id, None)
        self._asked_at[agent_id] = now
        trust_s = self._pace.hurried_trust_s if is_hurried else self._pace.peaceful_trust_s
        self._trusted_until[agent_id] = now + trust_s

    def answered(self, agent_id: int, now: float) -> None:
        """Record that an agent with a lower id is alive. It has `wake_trust_s` to start asking; then it is ignored."""
        since = self._woken_at.setdefault(agent_id, now)
        until = since + self._pace.wake_trust_s
        if now <= until:
            self._trusted_until[agent_id] = max(self._trusted_until.get(agent_id, 0.0), until)

    def silent(self, agent_id: int, since: float) -> None:
        """Record that an agent has not answered a question sent at `since`; ignored if it has asked since then."""
        if self._asked_at.get(agent_id, since) <= since:
            self._trusted_until.pop(agent_id, None)
            self._woken_at.pop(agent_id, None)

    def judge(self, now: float) -> int:
        """Return the id of the judging agent, as this agent sees it."""
        lower = {agent_id: until for agent_id, until in self._trusted_until.items() if agent_id < self.own_id}
        trusted = [agent_id for agent_id, until in lower.items() if until > now]
        return min(trusted, default=self.own_id)
