"""What is drawn of one rank, in columns of numbers: a million calls do not fit in memory as objects."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from otel_torchdist.model.calls import Channel, GroupView, OperationId
from otel_torchdist.model.names import CallSiteName

OPEN: Final = -1
"""The end of what has not ended."""
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Selection:
    """What is to be drawn.

    Attributes:
        ranks: Those to draw; None for all.
        steps: First and last step to draw; None for all.
        window_ns: Begin and end of the time to draw, since the epoch; None for all.
    """

    ranks: frozenset[int] | None = None
    steps: tuple[int, int] | None = None
    window_ns: tuple[int, int] | None = None

    def has_step(self, step: int) -> bool:
        """Whether a step is to be drawn."""
        return self.steps is None or self.steps[0] <= step <= self.steps[1]

    def has_time(self, begin_ns: int, end_ns: int) -> bool:
        """Whether something is to be drawn that lasted from one time to another, or is open."""
        if self.window_ns is None:
            return True
        return begin_ns <= self.window_ns[1] and (end_ns == OPEN or end_ns >= self.window_ns[0])


@dataclass(frozen=True, slots=True)
class CallKind:
    """What calls of one rank have in common.

    Attributes:
        name: `all_reduce`, `send`, …
        group: The group's label; '' if it is not known.
        message_bytes: Bytes that the rank contributes.
        shapes: `[128,1024] [8]`, or ''.
        dtype: `float32`, or ''.
        reduce_op: `sum`, or ''.
        site: Where it was called; None if that is not known.
        peer: Global rank of the peer or root; -1 if there is none.
        label: The label of `record_comm`, or ''.
        failure: Type of the exception that it raised, or ''.
    """

    name: str
    group: str
    message_bytes: int
    shapes: str
    dtype: str
    reduce_op: str
    site: CallSiteName | None
    peer: int
    label: str
    failure: str


@dataclass(slots=True)
class ChannelSlices:
    """Where the calls of a rank in one channel are in its columns.

    Attributes:
        group: The channel's group; None if it is not known.
        places: Their places, in the order in which they were entered.
    """

    group: GroupView | None
    places: array[int] = field(default_factory=lambda: array("q"))


@dataclass(slots=True)
class Slices:
    """Calls of one rank in columns; times are since the epoch.

    Attributes:
        begin: When each began.
        end: When it ended, or `OPEN`.
        kind: Index of its kind.
        sequence: Its position in its channel.
        step: Its step.
        wait: How long its rank waited for it, or `UNKNOWN`.
        how: How its end is known, a `How`; 0 while it is open.
    """

    begin: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("i"))
    sequence: array[int] = field(default_factory=lambda: array("q"))
    step: array[int] = field(default_factory=lambda: array("q"))
    wait: array[int] = field(default_factory=lambda: array("q"))
    how: array[int] = field(default_factory=lambda: array("b"))

    def __len__(self) -> int:
        return len(self.begin)


@dataclass(frozen=True, slots=True)
class Span:
    """A step, or an activity.

    Attributes:
        name: Its name.
        begin_ns: When it began, since the epoch.
        end_ns: When it ended, or `OPEN`.
        step: Its step.
    """

    name: str
    begin_ns: int
    end_ns: int
    step: int


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """What is drawn of one rank.

    Attributes:
        rank: Global rank.
        host: Host name, or ''.
        shift_ns: What was added to its times.
        until_ns: Its last sign of life, since the epoch; 0 if that is not known.
        kinds: The kinds of its calls.
        slices: Its calls.
        groups: By the name of their track, the places of its calls, by ascending begin.
        channels: The same calls, by channel.
        steps: Its steps, ascending.
        activities: Steps of its optimizer, by ascending begin.
        checkpoints: Its checkpoints, by ascending begin.
    """

    rank: int
    host: str
    shift_ns: int
    until_ns: int
    kinds: list[CallKind]
    slices: Slices
    groups: Mapping[str, list[int]]
    channels: Mapping[Channel, ChannelSlices]
    steps: tuple[Span, ...]
    activities: tuple[Span, ...]
    checkpoints: tuple[Span, ...] = ()

    @property
    def size(self) -> int:
        """How many slices it has."""
        return len(self.slices) + len(self.steps) + len(self.activities) + len(self.checkpoints)

    @property
    def newest_ns(self) -> int:
        """The last of its times."""
        slices = self.slices
        spans = [max(span.begin_ns, span.end_ns) for span in (*self.steps, *self.activities, *self.checkpoints)]
        return max([self.until_ns, max(slices.begin, default=0), max(slices.end, default=0), *spans])


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall, as the verdict has it.

    Attributes:
        text: The verdict's sentence.
        since_ns: When the first rank began to wait, on the clock of the ranks.
        blamed: Ranks that hold the job up.
        waiting: Ranks that wait.
        operation_id: The operation in which they wait.
    """

    text: str
    since_ns: int
    blamed: tuple[int, ...]
    waiting: tuple[int, ...]
    operation_id: OperationId
