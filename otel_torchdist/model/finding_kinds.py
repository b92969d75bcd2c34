"""The kinds of findings. Each is a row here, and a file in `stall/findings` that finds it and says all about it."""

from __future__ import annotations

import enum


class FindingKind(enum.Enum):
    """The kinds of findings. The value is the verdict in spans, log events, metrics and `--json`."""

    MISMATCHED = "mismatched"
    """Ranks have made different calls, and nothing stalls."""
    STRAGGLER = "straggler"
    """A rank repeatedly comes last."""
    SLOW_RANK = "slow_rank"
    """A rank without which steps would be notably shorter."""
    SLOW_NODE = "slow_node"
    """The same of all ranks of a node."""
    SLOW_STAGE = "slow_stage"
    """The same of all ranks of a stage of a pipeline."""
    NON_FINITE = "non_finite"
    """The ranks that were the first with an input that is infinite or not a number."""
    DIVERGED = "diverged"
    """Ranks have different results or parameters where all must have the same."""
    CHECKPOINT_FAILED = "checkpoint_failed"
    """A checkpoint could not be saved; its ranks are those on which an exception was raised."""
    SHARED_GROUP = "shared_group"
    """Two threads of a rank use one group at the same time."""
    STARVED = "starved"
    """All threads that serve remote procedure calls wait in calls of their own."""
    FROZEN = "frozen"
    """The process that should run remote procedure calls does not run."""
    DEAD = "dead"
    """A process that serves remote procedure calls is gone, while others go on."""
    IDLE = "idle"
    """No rank has called an operation for long, and all stand still; no rank is to blame."""


class Severity(enum.Enum):
    """How bad a finding is."""

    WARNING = "warning"
    """Time is lost."""
    ERROR = "error"
    """Results may be wrong, or work is lost."""
