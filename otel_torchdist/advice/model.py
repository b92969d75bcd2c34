"""A piece of advice: what was measured, never what to use instead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from otel_torchdist.critical_path.model import Cause
from otel_torchdist.critical_path.timelines import Label


class Topic(Enum):
    """What a piece of advice is about."""

    SLOW_RANK = "slow rank"
    """A rank is on the critical path for twice its share, and computes longer than its peers."""
    SLOW_NODE = "slow node"
    """Most ranks of one node compute longer than their peers elsewhere."""
    UNEQUAL_STAGES = "unequal stages"
    """A stage of pipelines computes longer than the others."""
    EXPOSED = "exposed communication"
    """A notable part of the critical path is transfer."""
    ACROSS_NODES = "busy groups across nodes"
    """Groups that communicate within layers have members on different nodes."""
    SMALL = "many small operations"
    """Gradients are exchanged in many small operations."""
    EXPERTS = "unequal experts"
    """Experts have unequal amounts of work."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice. What does not apply to its topic is empty, 0 or None.

    Attributes:
        topic: What it is about.
        ranks: The ranks concerned, ascending.
        host: The node concerned.
        label: The call concerned.
        role: What the groups concerned are for.
        groups: How many groups are concerned.
        share: Of the critical path: what it has of that.
        gain_ns: What a step would be shorter at most; None if that cannot be replayed.
        step_bytes: Bytes that all members of the groups send in a step.
        step_operations: Operations of one rank in a step.
        operation_bytes: What a rank contributes to one of them, on average.
        ratio: The largest amount of work by the mean.
        cause: What the rank or node does for longer than its peers; None for topics that are no cause of the path.
    """

    topic: Topic
    ranks: tuple[int, ...] = ()
    host: str = ""
    label: Label | None = None
    role: str = ""
    groups: int = 0
    share: float = 0.0
    gain_ns: int | None = None
    step_bytes: int = 0
    step_operations: int = 0
    operation_bytes: int = 0
    ratio: float = 0.0
    cause: Cause | None = None
