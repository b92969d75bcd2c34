"""The kinds of findings. Each is a row here, and a file in `stall/findings` that finds it and says all about it."""

from __future__ import annotations

import enum


class FindingKind(enum.Enum):
    """The kinds of findings. The value is the verdict in spans, log events, metrics and `--json`.

    Attributes:
        meaning: A clause for the help of the metric of findings.
    """

    _value_: str
    meaning: str

    def __new__(cls, value: str, meaning: str) -> FindingKind:
        """Make the member of a row."""
        kind = object.__new__(cls)
        kind._value_ = value
        kind.meaning = meaning
        return kind

    MISMATCHED = "mismatched", "ranks have made calls that do not match, and nothing stalls"
    STRAGGLER = "straggler", "a rank repeatedly comes last"
    SLOW_RANK = "slow_rank", "a rank without which steps would be notably shorter"
    SLOW_NODE = "slow_node", "a node without which steps would be notably shorter"
    SLOW_STAGE = "slow_stage", "a stage of a pipeline without which steps would be notably shorter"
    NON_FINITE = "non_finite", "the first ranks with an input that is infinite or not a number"
    DIVERGED = "diverged", "ranks have different results or parameters where all must have the same"
    CHECKPOINT_FAILED = (
        "checkpoint_failed",
        "a checkpoint could not be saved, because an exception was raised on these ranks",
    )
    SHARED_GROUP = "shared_group", "two threads of a rank use one group at the same time"
    STARVED = "starved", "all threads that serve remote procedure calls wait in calls of their own"
    FROZEN = "frozen", "a process that should run remote procedure calls does not run"
    DEAD = "dead", "a process that serves remote procedure calls is gone, while others go on"
    IDLE = "idle", "no rank has called an operation for long, and all stand still"


class Severity(enum.Enum):
    """How bad a finding is."""

    WARNING = "warning"
    """Time is lost."""
    ERROR = "error"
    """Results may be wrong, or work is lost."""
