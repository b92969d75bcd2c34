"""The parts of a report with many entries, in columns: the timeline, all ranks, all steps."""

from __future__ import annotations

import msgspec


class BarLane(msgspec.Struct, frozen=True):
    """Bars of one rank that do not overlap, in columns. Times are in nanoseconds.

    Attributes:
        rank: The rank.
        group: Index of the group's name; -1 for activities.
        kind: Index of the kind, by bar.
        begin: Distance from the start of the previous bar, by bar.
        length: Length, by bar; -1 if it is open.
        waited: Part of the length spent waiting for other ranks, by bar; -1 if unknown.
        sequence: Position in the group, by bar.
        step: Step, by bar; -1 if unknown.
        loose: Indices of bars whose end is known only to tens of milliseconds.
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
    """The common properties of bars.

    Attributes:
        name: `all_reduce`, …
        family: The basic collective: `all_gather` for `all_gather_into_tensor`.
        site: Its call site, or ''.
        message_bytes: Bytes that a rank contributes.
    """

    name: str
    family: str
    site: str
    message_bytes: int


class Mark(msgspec.Struct, frozen=True):
    """A moment: the end of a step, or the arrival of a late rank.

    Attributes:
        at_ns: The time.
        label: The label.
        is_late: Whether a late rank arrives.
    """

    at_ns: int
    label: str
    is_late: bool = False


class PathPiece(msgspec.Struct, frozen=True):
    """A piece of the critical path.

    Attributes:
        rank: Its rank.
        at_ns: Its start.
        length_ns: Its length.
    """

    rank: int
    at_ns: int
    length_ns: int


class TimeWindow(msgspec.Struct, frozen=True):
    """A window of time in which the calls of some ranks are shown.

    Attributes:
        title: `steps 236-239`.
        origin: Local time of the window's time 0.
        length_ns: Its length.
        lanes: The calls.
        kinds: Kinds of bars, by index.
        groups: Names of groups, by index.
        marks: Marked moments.
        ranks: Number of ranks shown.
        remarks: Sentences on parts that are left out, and on the accuracy of times between ranks.
        incident: Index of its incident; None for steps.
        path: Pieces of the critical path on the shown ranks.
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
        host: Index into `World.host_names`; -1 if unknown.
        calls: Number of its calls.
        open: Number of its calls that have not ended.
        lost: Number of missing calls.
        bytes: Bytes that it contributed.
        span_ns: Time from its first call to its last.
        communicating_ns: Time with a call in flight; None if unknown.
        waiting_ns: Time spent waiting for other ranks; None if unknown.
        compared: Number of operations whose last arrival is known.
        came_last: Number of these at which it arrived last.
        steps: Number of steps whose length is known.
        step_ns: Their median length; None without any.
        step_p99_ns: 99th percentile of their lengths.
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
    """Step times over all ranks, in columns. Neighboring steps share an entry if there are many.

    Attributes:
        first: First step of each entry.
        last: Last step of each entry.
        least_ns: Shortest step.
        median_ns: Median.
        most_ns: Longest step.
        slowest: The rank with the longest step.
    """

    first: tuple[int, ...]
    last: tuple[int, ...]
    least_ns: tuple[int, ...]
    median_ns: tuple[int, ...]
    most_ns: tuple[int, ...]
    slowest: tuple[int, ...]
