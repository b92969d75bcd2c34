"""Elects the agent that judges: of those alive, the one with the lowest agent_id. Pure; time is passed in."""

from __future__ import annotations

from otel_torchdist.exchange.pace import PACE, ExchangePace


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
