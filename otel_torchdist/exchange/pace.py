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
