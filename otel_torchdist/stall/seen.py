"""What a reader sees of a run after a pass, for pages that show it while it runs. Frozen data only."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.model.snapshot import WorldSnapshot
from otel_torchdist.stall.events import Ruling
from otel_torchdist.stall.peer_agents import JudgingAgent
from otel_torchdist.verdict.model import Verdict


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One run, as of the last pass.

    Attributes:
        world: The ranks that are seen here: those of all nodes if this agent judges.
        ruling: The latest ruling on the ongoing stall, by whichever agent judges; None if there is none.
        verdict: This agent's verdict on it, which the ruling puts into words; None if there is none.
        judge: The agent that judges; None if it is this one.
    """

    world: WorldSnapshot
    ruling: Ruling | None
    verdict: Verdict | None
    judge: JudgingAgent | None
