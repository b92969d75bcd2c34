"""The critical path of steady steps, and what follows from it. All times in nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from otel_torchdist.analysis.clocks.offsets import ClockOffset
from otel_torchdist.analysis.critical_path.timelines import Label
from otel_torchdist.model.activity_kinds import TimeKind

MOST_LONGEST: Final = 3


class PathKind(Enum):
    """What happens on a piece of the path."""

    COMPUTING = "computing"
    """The rank is in no call: it computes, loads data, or does whatever else its code does."""
    TRANSFER = "transfer"
    """All that the call needs have arrived."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the path: during it, this rank determined how long the step takes.

    Attributes:
        rank: Global rank.
        begin_ns: Its begin, on the clock of the reference.
        end_ns: Its end.
        kind: What happened.
        label: The call that the rank computed before, or the call that transferred; None before the end of a step.
    """

    rank: int
    begin_ns: int
    end_ns: int
    kind: PathKind
    label: Label | None

    @property
    def duration_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True, slots=True)
class StepPath:
    """The path through the time from one step's end to the next, each as the last rank ended it.

    Attributes:
        step: Its number; None where the source records no steps and the path goes through all calls.
        begin_ns: When the last rank had ended the step before.
        end_ns: When the last rank ended it.
        pieces: In order; without gaps, unless times are damaged.
        longest_spent: What the rank spent the longest piece on; only of steps that are left out.
    """

    step: int | None
    begin_ns: int
    end_ns: int
    pieces: tuple[Piece, ...]
    longest_spent: Mapping[TimeKind, int] = field(default_factory=dict[TimeKind, int])

    @property
    def duration_ns(self) -> int:
        """How long the step took."""
        return self.end_ns - self.begin_ns

    @property
    def longest_piece(self) -> Piece | None:
        """The longest piece of the path; None if it has none."""
        return max(self.pieces, key=lambda piece: piece.duration_ns, default=None)


@dataclass(frozen=True, slots=True)
class RankTime:
    """What a rank did in an average steady step.

    Attributes:
        rank: Global rank.
        host: Host name, or ''.
        on_path_ns: Its computing on the critical path.
        computing_ns: Time in which no call is known to have held it up.
        waiting_ns: Time in which it waited for another rank to arrive.
        transfer_ns: Time in which calls held it up after all had arrived.
        waits_for: For which ranks it waited, the longest first.
    """

    rank: int
    host: str
    on_path_ns: int
    computing_ns: int
    waiting_ns: int
    transfer_ns: int
    waits_for: tuple[tuple[int, int], ...]


class CauseKind(Enum):
    """What could be removed."""

    LINE = "line"
    """One rank takes longer than its peers before one call."""
    RANK = "rank"
    """One rank takes longer than its peers, before several calls."""
    NODE = "node"
    """Several ranks of one node take longer than their peers on others."""
    STAGE = "stage"
    """One stage of a pipeline takes longer than the others before the same lines."""
    TRANSFER = "transfer"
    """The operations of one group take time although all have arrived."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that makes steps longer, and what its removal would bring.

    Attributes:
        kind: What it is.
        ranks: The ranks concerned, ascending; of a stage those of the slowest one.
        host: The node, if the cause is one.
        label: The call, for a line or a transfer.
        excess_ns: What the ranks take more than their peers in a step, each on average; for a transfer, what it takes.
        gain_ns: What a step would be shorter at most.
        kinds: What they spend the excess on, in nanoseconds; empty if that is not compared.
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
        """What most of the excess is spent on."""
        return max(self.kinds, key=self.kinds.__getitem__, default=TimeKind.COMPUTING)


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What determines how long the steady steps of a run take.

    Attributes:
        world_size: Ranks of the job, as far as that is known.
        ranks: Ranks with records, ascending.
        has_steps: Whether the sources record steps; if not, all calls count as one step.
        steps: The steady steps, in order.
        unsteady: Steps that were left out because they took more than twice the median.
        longest: The longest of these, at most `MOST_LONGEST`, in order.
        step_ns: The median of the steps' durations.
        by_rank: What each rank did, ascending.
        by_kind: Length of the path by what happened, in an average step.
        by_label: Length of the path by what happened, rank and call, in an average step, the longest first.
        spent: What ranks spent the computing on the path on, in an average step, by rank and call.
        causes: What could be removed, the greatest gain first.
        clocks: How the clocks of nodes were aligned.
        group_names: By key, how groups are called.
        notes: What could not be taken into account.
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
