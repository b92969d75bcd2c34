"""How often agents ask each other, how long they wait for answers, and how long they trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ExchangePace:
    """The times of an exchange, in seconds.

    Attributes:
        peaceful_round_s: From one question to the next while no agent suspects a stall.
        hurried_round_s: The same while one does.
        peaceful_timeout_s: How long an answer may take while no agent suspects a stall.
        hurried_timeout_s: The same while one does.
        hold_s: How long a judgement waits for a first round of answers, and to learn whether agents that did not answer
            are out of reach: long enough for an unanswered question at the peaceful timeout, and another at the hurried
            one.
        wake_after_s: An agent that suspects a stall and is not asked for this long wakes the agent that should ask.
        hurried_trust_s: How long an agent that has asked while a stall is near is trusted to keep asking.
        peaceful_trust_s: The same for an agent that has asked in peace.
        wake_trust_s: How long an agent that has answered is given to start asking.
        lost_round_s: From one question to an agent out of reach to the next: each delays the others.
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
# Elects the agent that judges: of those alive, the one with the lowest agent_id. Pure; time is passed in.


class Election:
    """What one agent knows about the agents with lower ids."""

    def __init__(self, own: int, pace: ExchangePace = PACE) -> None:
        self.own = own
        self._pace = pace
        self._trusted_until: dict[int, float] = {}
        self._asked_at: dict[int, float] = {}
        self._woken_at: dict[int, float] = {}

    def asked_by(self, agent_id: int, now: float, is_hurried: bool) -> None:
        """Record a question from an agent that judges."""
        self._woken_at.pop(agent_id, None)
        self._asked_at[agent_id] = now
        trust_s = self._pace.hurried_trust_s if is_hurried else self._pace.peaceful_trust_s
        self._trusted_until[agent_id] = now + trust_s

    def answered(self, agent_id: int, now: float) -> None:
        """Record that an agent with a lower id is alive and should start asking; if not, it is not waited for."""
        since = self._woken_at.setdefault(agent_id, now)
        until = since + self._pace.wake_trust_s
        if now <= until:
            self._trusted_until[agent_id] = max(self._trusted_until.get(agent_id, 0.0), until)

    def silent(self, agent_id: int, since: float) -> None:
        """Record that an agent has not answered a question of that moment; one that has asked since is alive."""
        if self._asked_at.get(agent_id, since) <= since:
            self._trusted_until.pop(agent_id, None)
            self._woken_at.pop(agent_id, None)

    def judge(self, now: float) -> int:
        """The id of the agent that judges, as far as this agent knows."""
        trusted = [agent_id for agent_id, until in self._trusted_until.items() if until > now and agent_id < self.own]
        return min(trusted, default=self.own)
