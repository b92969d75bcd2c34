"""Elects the agent that judges: of those alive, the one with the lowest seat. Pure; time is passed in."""

from __future__ import annotations

from typing import Final

HURRIED_TRUST_S: Final = 3.0
"""How long an agent that has asked while a stall is near is trusted to keep asking."""
PEACEFUL_TRUST_S: Final = 15.0
KNOCK_TRUST_S: Final = 2.0
"""How long an agent that has answered is given to start asking."""


class Election:
    """What one agent knows about the agents with lower seats."""

    def __init__(self, own: int) -> None:
        self.own = own
        self._trusted_until: dict[int, float] = {}
        self._knocked_at: dict[int, float] = {}

    def asked_by(self, seat: int, now: float, is_hurried: bool) -> None:
        """Record a question from an agent that judges."""
        self._knocked_at.pop(seat, None)
        self._trusted_until[seat] = now + (HURRIED_TRUST_S if is_hurried else PEACEFUL_TRUST_S)

    def answered(self, seat: int, now: float) -> None:
        """Record that an agent with a lower seat is alive and should start asking; if not, it is not waited for."""
        since = self._knocked_at.setdefault(seat, now)
        if now - since <= KNOCK_TRUST_S:
            self._trusted_until[seat] = max(self._trusted_until.get(seat, 0.0), since + KNOCK_TRUST_S)

    def silent(self, seat: int) -> None:
        """Record that an agent does not answer."""
        self._trusted_until.pop(seat, None)
        self._knocked_at.pop(seat, None)

    def judge(self, now: float) -> int:
        """The seat of the agent that judges, as far as this agent knows."""
        trusted = [seat for seat, until in self._trusted_until.items() if until > now and seat < self.own]
        return min(trusted, default=self.own)
