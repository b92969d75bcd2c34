"""Asks other agents for the calls of some steps, from which the critical path of a whole step is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from otel_torchdist.agent.exchange.peer import PeerAgent

WORKERS: Final = 16
"""Agents that are asked at the same time."""

AnswerSteps = Callable[[int, bytes], bytes | None]
"""Returns the calls of this node's ranks for a run and a question about steps; None if there is no answer."""


def no_steps(_run: int, _question: bytes) -> None:
    """Answer no question about steps."""


def steps_of(others: Sequence[PeerAgent], question: bytes, timeout_s: float) -> list[tuple[bytes, int]]:
    """Ask agents for the calls of some steps, and wait for the answers.

    Args:
        others: The agents.
        question: The steps.
        timeout_s: Longest time to wait for an agent.

    Returns:
        The answer of each agent (empty if none came), with its number of ranks.
    """
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="torchdist-steps") as pool:
        answers = pool.map(functools.partial(PeerAgent.steps, question=question, timeout_s=timeout_s), others)
        return [(answer, len(other.views)) for other, answer in zip(others, answers, strict=True)]
