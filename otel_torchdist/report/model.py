"""The report on a run as one document. Frozen data only, which becomes JSON as it is.

Numbers are raw: bytes, nanoseconds, bytes per second; unknown values are None. Times of a window count from its origin.
Everything that comes from a job is text of its own, never part of a sentence in markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Heading:
    """What the report is about.

    Attributes:
        title: `run 01f9d985`, or what files it was read from.
        run: 32 hex digits; None if it has no id.
        place: Where it was read.
        began: When the run began, local time; '' if that is not known.
        seen_until: The time of the newest record, local time; ''.
        made: When the report was made, local time.
        made_by: The program, with its version.
        world_size: Ranks of the job.
        known_ranks: How many of them have records.
        unknown_ranks: The others, as a list of ranges.
        hosts: Host names, each with its ranks as a list of ranges.
        calls: Calls of all ranks.
        lost: Calls that are known to be missing.
    """

    title: str
    run: str | None
    place: str
    began: str
    seen_until: str
    made: str
    made_by: str
    world_size: int
    known_ranks: int
    unknown_ranks: str
    hosts: tuple[tuple[str, str], ...]
    calls: int
    lost: int


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What `diagnose` says of the run.

    Attributes:
        tone: `bad`, `warn` or `good`.
        title: A word or two: `verdict`, `no verdict`.
        sentence: The verdict.
        more: What follows from it, a sentence each.
        ranks: The ranks that it names.
        details: What each rank was doing last, as lines of text.
    """

    tone: str
    title: str
    sentence: str
    more: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    details: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """An operation at which ranks waited for one rank for a long time, and which has ended since.

    Attributes:
        rank: The rank that came last.
        host: Its host, or ''.
        waited: How many ranks waited for it.
        wait_ns: How long the first of them waited.
        operation: What they were in, with sequence and group.
        site: Where the late rank called it; ''.
        step: The step of the late rank; None if that is not known.
        began: When the first rank began to wait, local time.
    """

    rank: int
    host: str
    waited: int
    wait_ns: int
    operation: str
    site: str
    step: int | None
    began: str


@dataclass(frozen=True, slots=True)
class Purpose:
    """What groups are for.

    Attributes:
        role: `DP`, `TP`, …
        evidence: What was called.
        calls: How many calls speak for it.
        sent: Bytes that were sent in them.
    """

    role: str
    evidence: str
    calls: int
    sent: int


@dataclass(frozen=True, slots=True)
class GroupSet:
    """Groups that are for the same: those along an axis, a product of axes, or a part.

    Attributes:
        span: Along which axes they are: `axis 1`, a product of several, or `other`.
        role: What they are for, in a word.
        size: Ranks of each group.
        count: How many groups there are.
        examples: Members of the first ones, as lists of ranges.
        purposes: Why.
        names: What frameworks call them.
        sent: Bytes that were sent in them.
        across_hosts: How many have members on different hosts; None if hosts are not known.
    """

    span: str
    role: str
    size: int
    count: int
    examples: tuple[str, ...]
    purposes: tuple[Purpose, ...]
    names: tuple[str, ...]
    sent: int
    across_hosts: int | None


@dataclass(frozen=True, slots=True)
class World:
    """The parallel world.

    Attributes:
        shape: The world as a product of its axes.
        axes: The axes, nearest neighbours first.
        others: All other groups.
        coordinates: By rank, its coordinate on each axis and the copy of the grid, one after the other.
        copies: How many grids of this shape there are.
        hosts: By rank, which of the host names it is on; -1 if that is not known.
        host_names: Host names.
        unknown: Ranks without records.
        remarks: What is not known, and what does not fit.
    """

    shape: str
    axes: tuple[GroupSet, ...]
    others: tuple[GroupSet, ...]
    coordinates: tuple[int, ...]
    copies: int
    hosts: tuple[int, ...]
    host_names: tuple[str, ...]
    unknown: tuple[int, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Bytes between ranks, or between sets of them.

    Attributes:
        unit: What a row stands for: `rank`, `host` or `ranks`.
        names: Of rows and columns.
        cells: Row, column and bytes, one after the other.
        between_hosts: Bytes between different hosts; None if there are not several.
        total: All bytes.
        unattributed: Bytes of large `all_to_all`, which are in no cell.
    """

    unit: str
    names: tuple[str, ...]
    cells: tuple[int, ...]
    between_hosts: int | None
    total: int
    unattributed: int


@dataclass(frozen=True, slots=True)
class Lane:
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


@dataclass(frozen=True, slots=True)
class BarKind:
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


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment: the end of a step.

    Attributes:
        at_ns: When.
        label: What.
    """

    at_ns: int
    label: str


@dataclass(frozen=True, slots=True)
class Window:
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
    """

    title: str
    origin: str
    length_ns: int
    lanes: tuple[Lane, ...]
    kinds: tuple[BarKind, ...]
    groups: tuple[str, ...]
    marks: tuple[Mark, ...]
    ranks: int
    remarks: tuple[str, ...]
    incident: int | None = None


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls with something in common, as in `stats`.

    Attributes:
        operation: Its name.
        group: The group's name; None if groups do not distinguish rows.
        members: Its ranks.
        size_class: Class of the message size.
        site: Where it is called; None if that does not distinguish rows.
        calls: Calls of all ranks.
        fewest: Calls of the rank with the fewest.
        most: Calls of the rank with the most.
        differ: Whether members have not called it equally often.
        open: Calls that have not ended.
        failed: Calls that raised.
        bytes: Bytes that ranks contributed.
        time_ns: Sum of durations.
        median_ns: Median duration.
        p99_ns: 99th percentile.
        wait_ns: How long calls waited for others.
        transfer_ns: How long they took after that.
        bus: Bus bandwidth in bytes per second.
        is_bound: Whether that is a lower bound.
        compared: Operations at which the last arrival is known.
        last_rank: The rank that was last most often.
        last_times: How often.
        last_ns: How long the others waited for it then, at the median.
    """

    operation: str
    group: str | None
    members: int
    size_class: str
    site: str | None
    calls: int
    fewest: int
    most: int
    differ: bool
    open: int
    failed: int
    bytes: int
    time_ns: int
    median_ns: int | None
    p99_ns: int | None
    wait_ns: int
    transfer_ns: int
    bus: float | None
    is_bound: bool
    compared: int
    last_rank: int | None
    last_times: int
    last_ns: int | None


@dataclass(frozen=True, slots=True)
class RankColumns:
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


@dataclass(frozen=True, slots=True)
class Skew:
    """How well the calls of a group's members fit together.

    Attributes:
        group: Its name.
        is_point_to_point: Whether these are its sends and receives.
        members: Ranks.
        complete: Operations that all have left.
        open: Operations that all have entered and not all have left.
        incomplete: Operations that not all have entered.
        mismatched: Operations at which members called something different.
        median_ns: Time between the first arrival and the last, at the median.
        p99_ns: 99th percentile.
        max_ns: At most.
    """

    group: str
    is_point_to_point: bool
    members: int
    complete: int
    open: int
    incomplete: int
    mismatched: int
    median_ns: int | None
    p99_ns: int | None
    max_ns: int | None


@dataclass(frozen=True, slots=True)
class Steps:
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


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        heading: What it is about.
        conclusions: What `diagnose` says.
        incidents: Long waits that have ended, the longest first.
        world: The parallel world; None without groups.
        matrix: What moves between ranks; None if nothing does.
        windows: What the timeline shows; the first one comes first.
        calls: Calls by what they have in common, most time first.
        calls_left_out: How many more such rows there are.
        differences: Where members of a group have not called something equally often, a sentence each.
        ranks: All ranks.
        skews: Groups, the largest skew first.
        skews_left_out: How many more groups there are.
        steps: Step times; None if there are no steps.
        notes: What could not be read, and why.
        schema: Of this document.
    """

    heading: Heading
    conclusions: tuple[Conclusion, ...]
    incidents: tuple[Incident, ...]
    world: World | None
    matrix: Matrix | None
    windows: tuple[Window, ...]
    calls: tuple[Calls, ...]
    calls_left_out: int
    differences: tuple[str, ...]
    ranks: RankColumns
    skews: tuple[Skew, ...]
    skews_left_out: int
    steps: Steps | None
    notes: tuple[str, ...]
    schema: int = SCHEMA
