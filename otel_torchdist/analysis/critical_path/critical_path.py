"""The critical path of steady steps, with its causes. All times in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from otel_torchdist.analysis.clocks.offsets import ClockOffset
from otel_torchdist.analysis.critical_path.timelines import Label
from otel_torchdist.model.activity_kinds import TimeKind

MAX_LONGEST: Final = 3
"""Upper bound on the listed steps that were left out."""


class PathKind(Enum):
    """The kinds of pieces of the path."""

    COMPUTING = "computing"
    """The rank is outside of calls: it computes, loads data, or runs other code."""
    TRANSFER = "transfer"
    """The call runs after all ranks that it needs have arrived."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the path: an interval in which one rank determined the duration of the step.

    Attributes:
        rank: Global rank.
        begin_ns: Start on the reference clock.
        end_ns: End on the reference clock.
        label: The call that follows the computing, or the call that transfers; None if the end of a step follows.
    """

    rank: int
    begin_ns: int
    end_ns: int
    kind: PathKind
    label: Label | None

    @property
    def duration_ns(self) -> int:
        """The duration of the piece."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class StepPath:
    """The critical path through one step: from the end of the previous step to its own end, each on the last rank.

    Attributes:
        step: Number of the step; None if the source records no steps and the path goes through all calls.
        begin_ns: When the last rank ended the previous step.
        end_ns: When the last rank ended this step.
        pieces: In order; without gaps, unless times are damaged.
        longest_spent: Nanoseconds of the longest piece, by kind of time; empty for steady steps.
    """

    step: int | None
    begin_ns: int
    end_ns: int
    pieces: tuple[Piece, ...]
    longest_spent: Mapping[TimeKind, int] = field(default_factory=dict[TimeKind, int])

    @property
    def duration_ns(self) -> int:
        """The duration of the step."""
        return self.end_ns - self.begin_ns

    @property
    def longest_piece(self) -> Piece | None:
        """The longest piece of the path; None if it has none."""
        return max(self.pieces, key=lambda piece: piece.duration_ns, default=None)


@dataclass(frozen=True, slots=True)
class RankTime:
    """The time of one rank in an average steady step.

    Attributes:
        rank: Global rank.
        host: Host name, or ''.
        on_path_ns: Computing on the critical path.
        computing_ns: Time in which no call is known to have blocked the rank.
        waiting_ns: Time spent waiting for other ranks to arrive.
        transfer_ns: Time blocked in calls after all ranks had arrived.
        waits_for: Pairs of a rank and the nanoseconds waited for it, the longest first.
    """

    rank: int
    host: str
    on_path_ns: int
    computing_ns: int
    waiting_ns: int
    transfer_ns: int
    waits_for: tuple[tuple[int, int], ...]


class CauseKind(Enum):
    """The kinds of causes."""

    LINE = "line"
    """One rank takes longer than its peers before one call."""
    RANK = "rank"
    """One rank takes longer than its peers, before several calls."""
    NODE = "node"
    """Several ranks of one node take longer than their peers on other nodes."""
    STAGE = "stage"
    """One stage of a pipeline takes longer than the others before the same lines."""
    TRANSFER = "transfer"
    """The operations of one group take time after all ranks have arrived."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of long steps, with the gain of removing it.

    Attributes:
        ranks: The ranks concerned, ascending. For a stage: the ranks of the slowest stage.
        host: The node, for a node; else the rank's host, or ''.
        label: The call, for a line or a transfer.
        excess_ns: Time per step and rank beyond the peers' time; for a transfer, its duration.
        gain_ns: Upper bound on the time a step would save.
        kinds: The excess by kind of time, in nanoseconds; empty if it is not compared.
    """

    kind: CauseKind
    ranks: tuple[int, ...]
    host: str
    label: Label | None
    excess_ns: int
    gain_ns: int
    kinds: Mapping[TimeKind, int] = field(default_factory=dict[TimeKind, int])

    @property
    def main_kind(self) -> TimeKind:
        """The kind of time with the largest excess."""
        return max(self.kinds, key=self.kinds.__getitem__, default=TimeKind.COMPUTING)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The critical path through the steady steps of a run.

    Attributes:
        world_size: Number of ranks in the job, if known; else the number of ranks seen.
        ranks: Ranks with records, ascending.
        has_steps: Whether the sources record steps; if not, all calls count as one step.
        steps: The steady steps, in order.
        unsteady: Number of steps that were left out because they took more than twice the median.
        longest: The longest of these, at most `MAX_LONGEST`, in order.
        step_ns: The median duration of the steady steps.
        by_rank: The time of each rank, ascending.
        by_kind: Length of the path by kind, in an average step.
        by_label: Length of the path by kind, rank and call, in an average step, the longest first.
        spent: Computing on the path by rank, call and kind of time, in an average step.
        causes: Causes, the greatest gain first.
        clocks: The clock offsets of nodes.
        group_names: Names of groups, by key.
        notes: Limits of this analysis, as sentences.
    """

    world_size: int
    ranks: tuple[int, ...]
    has_steps: bool
    steps: tuple[StepPath, ...]
    unsteady: int
    longest: tuple[StepPath, ...]
    step_ns: int
    by_rank: tuple[RankTime, ...]
    by_kind: Mapping[PathKind, int]
    by_label: Mapping[tuple[PathKind, int, Label | None], int]
    spent: Mapping[tuple[int, Label | None], Mapping[TimeKind, int]]
    causes: tuple[Cause, ...]
    clocks: tuple[ClockOffset, ...]
    group_names: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def path_ns(self) -> int:
        """Length of the path in an average step."""
        return sum(self.by_kind.values())
