"""All recorded calls of one rank."""

from __future__ import annotations

from dataclasses import dataclass

from otel_torchdist.model.activities import Activity
from otel_torchdist.model.calls import GroupView, OperationView
from otel_torchdist.model.operations import StepMark


@dataclass(frozen=True, slots=True)
class RankHistory:
    """All recorded calls of one rank, from a tape, a dump of a flight recorder or a trace of a profiler.

    Attributes:
        rank: Global rank.
        world_size: Ranks of the job, as far as that is known; else 0.
        host: Host name, or '' if the source does not record it.
        wall_offset_ns: Add it to the times of operations for nanoseconds since the epoch.
        operations: In the order in which they were entered, in their last known state.
        lost: How many calls are known to be missing: they were overwritten or damaged.
        clock: Names the clock of its times, such as by the boot of the node; '' if that is not known. Never compare
            times of ranks with different clocks, or with none.
        until_ns: The last sign of life of the rank: nothing but this happened until then. 0 if that is not known.
        groups: The groups that are known, whether they were used or not, and possibly some of other ranks.
        steps: The ends of its steps, ascending; empty if the source does not record them.
        activities: What it recorded that is no operation, such as steps of its optimizer.
    """

    rank: int
    world_size: int
    host: str
    wall_offset_ns: int
    operations: tuple[OperationView, ...]
    lost: int
    clock: str = ""
    until_ns: int = 0
    groups: tuple[GroupView, ...] = ()
    steps: tuple[StepMark, ...] = ()
    activities: tuple[Activity, ...] = ()
