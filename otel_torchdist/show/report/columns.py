"""The parts of a report that have many entries, in columns: the timeline, all ranks, all steps."""

from __future__ import annotations

import msgspec


class BarLane(msgspec.Struct, frozen=True):
    """Bars of one rank that do not overlap. Columns, for there are many.

    Attributes:
        rank: The rank.
        group: Index of the group's name; -1 for activities.
        kind: By bar, index of its kind.
        begin: By bar, its begin, as the distance to the one before.
        length: By bar, how long it lasted; -1 if it is open.
        waited: By bar, how long of that it only waited for others; -1 if that is not known.
        sequence: By bar, its position in its group.
        step: By bar, its step; -1 if that is not known.
        loose: Places of bars whose end is known no better than to tens of milliseconds.
    """

    rank: int
    group: int
    kind: tuple[int, ...]
    begin: tuple[int, ...]
    length: tuple[int, ...]
    waited: tuple[int, ...]
    sequence: tuple[int, ...]
    step: tuple[int, ...]
    loose: tuple[int, ...] = ()


class BarKind(msgspec.Struct, frozen=True):
    """What calls have in common.

    Attributes:
        name: `all_reduce`, …
        family: Which collective it is a form of: `all_gather` for `all_gather_into_tensor`.
        site: Where it is called, or ''.
        message_bytes: What a rank contributes.
    """

    name: str
    family: str
    site: str
    message_bytes: int


class Mark(msgspec.Struct, frozen=True):
    """A moment: the end of a step, or the arrival of a late rank.

    Attributes:
        at_ns: When.
        label: What.
        is_late: Whether a late rank arrives.
    """

    at_ns: int
    label: str
    is_late: bool = False


class PathPiece(msgspec.Struct, frozen=True):
    """A piece of the critical path.

    Attributes:
        rank: Its rank.
        at_ns: Its begin.
        length_ns: How long it is.
    """

    rank: int
    at_ns: int
    length_ns: int


class TimeWindow(msgspec.Struct, frozen=True):
    """A time of which the calls of some ranks are shown.

    Attributes:
        title: `steps 236-239`.
        origin: The wall-clock time that times count from, local time.
        length_ns: How long it is.
        lanes: The calls.
        kinds: What bars are.
        groups: Names of groups.
        marks: Moments in it.
        ranks: How many ranks are shown.
        remarks: What is left out, and how far times of ranks can be compared.
        incident: Which of the incidents it is about; None for steps.
        path: The critical path, as far as it is known here.
    """

    title: str
    origin: str
    length_ns: int
    lanes: tuple[BarLane, ...]
    kinds: tuple[BarKind, ...]
    groups: tuple[str, ...]
    marks: tuple[Mark, ...]
    ranks: int
    remarks: tuple[str, ...]
    incident: int | None = None
    path: tuple[PathPiece, ...] = ()


class RankColumns(msgspec.Struct, frozen=True):
    """All ranks, in columns.

    Attributes:
        rank: Global ranks, ascending.
        host: Which of `World.host_names`; -1 if that is not known.
        calls: Its calls.
        open: Those that have not ended.
        lost: Calls that are missing.
        bytes: Bytes that it contributed.
        span_ns: From its first call to its last.
        communicating_ns: Time with a call in flight; None if that is not known.
        waiting_ns: Time in which it waited for others; None likewise.
        compared: Operations at which the last arrival is known.
        came_last: At how many of them it arrived last.
        steps: Steps whose length is known.
        step_ns: Their median length; None without any.
        step_p99_ns: 99th percentile.
    """

    rank: tuple[int, ...]
    host: tuple[int, ...]
    calls: tuple[int, ...]
    open: tuple[int, ...]
    lost: tuple[int, ...]
    bytes: tuple[int, ...]
    span_ns: tuple[int, ...]
    communicating_ns: tuple[int | None, ...]
    waiting_ns: tuple[int | None, ...]
    compared: tuple[int, ...]
    came_last: tuple[int, ...]
    steps: tuple[int, ...]
    step_ns: tuple[int | None, ...]
    step_p99_ns: tuple[int | None, ...]


class StepColumns(msgspec.Struct, frozen=True):
    """How long steps took, over all ranks. Columns; neighbouring steps share an entry where there are many.

    Attributes:
        first: First step of each entry.
        last: Last step of each entry.
        least_ns: The shortest.
        median_ns: The median.
        most_ns: The longest.
        slowest: The rank with the longest.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    least_ns: tuple[int, ...]
    median_ns: tuple[int, ...]
    most_ns: tuple[int, ...]
    slowest: tuple[int, ...]
