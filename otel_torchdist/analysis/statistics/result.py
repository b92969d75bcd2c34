"""The statistics of a run, as they stand in JSON: numbers are raw, in bytes, nanoseconds and bytes per second."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from otel_torchdist.analysis.statistics.grouping import Part

MAX_LISTED: int = 32
"""Unfinished operations that a group lists."""


class GroupRef(msgspec.Struct, frozen=True):
    """A process group.

    Attributes:
        key: Its key, the same on all its members.
        name: Its name in sentences.
        members: Number of its ranks; 0 if that is not known.
    """

    key: str
    name: str
    members: int


class CallSite(msgspec.Struct, frozen=True):
    """A line of code that calls operations; all empty if it is not known.

    Attributes:
        function: Name of the function.
        file: Path of the file.
        line: Number of the line.
    """

    function: str
    file: str
    line: int


class BandwidthOver(Enum):
    """The time over which bandwidth was measured."""

    TRANSFER = "transfer"
    """From the last arrival to the end, as in a benchmark in which all ranks begin together."""
    DURATION = "duration"
    """From the call to the end, including the wait for other ranks: a lower bound."""


class Bandwidth(msgspec.Struct, frozen=True):
    """Bandwidth in the sense of nccl-tests.

    Attributes:
        algorithm_bytes_per_second: Bytes of the operation by its time.
        bus_bytes_per_second: The same, comparable with the hardware for any number of ranks.
        over: `transfer`, or `duration` if only that is known: then it is a lower bound.
    """

    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    over: BandwidthOver


class Latecomer(msgspec.Struct, frozen=True):
    """A rank that arrived last.

    Attributes:
        rank: Global rank.
        times: Number of operations at which it arrived last.
        median_ns: Time for which the others waited for it alone, at the median.
    """

    rank: int
    times: int
    median_ns: int


class Row(msgspec.Struct, frozen=True):
    """Calls with something in common.

    Attributes:
        operation: `all_reduce`, `send`, …; null if it does not distinguish rows, as all up to `phase`.
        group: The process group.
        size_class: Class of the message size; `none` for what moves no data, `unknown` for unknown sizes.
        call_site: The line that calls.
        rank: Global rank.
        phase: `backward`, `outside_backward` or `unknown`.
        calls: Calls of all ranks.
        calls_by_rank: Calls of each rank.
        calls_of_a_rank_min: Calls of the rank with the fewest.
        calls_of_a_rank_max: Calls of the rank with the most.
        counts_differ: Whether members of a group have called one of these operations a different number of times.
        open: Calls that have not ended.
        failed: Calls that raised.
        not_timed: Calls that have ended without an exception, and whose begin or end is not known well.
        timed: Calls whose begin and end are known well: not those that only a poll or a watchdog saw end.
        message_bytes: Bytes that ranks contributed.
        time_ns: Sum of the durations of timed calls.
        median_ns: Median of their durations; null if there is none. Percentiles are exact, by the nearest rank.
        p99_ns: 99th percentile of their durations.
        split: Timed calls for which the arrival is known that they waited for.
        wait_ns: Time for which these waited for it.
        transfer_ns: Time that these took after that.
        bandwidth: Null if no timed call moved bytes.
        compared: Operations at which the last arrival is known, counted where the last rank has its calls; those at
            which several arrived last do not count.
        latecomers: The ranks that arrived last, most frequent first.
    """

    operation: str | None
    group: GroupRef | None
    size_class: str | None
    call_site: CallSite | None
    rank: int | None
    phase: str | None
    calls: int
    calls_by_rank: Mapping[int, int]
    calls_of_a_rank_min: int
    calls_of_a_rank_max: int
    counts_differ: bool
    open: int
    failed: int
    not_timed: int
    timed: int
    message_bytes: int
    time_ns: int
    median_ns: int | None
    p99_ns: int | None
    split: int
    wait_ns: int
    transfer_ns: int
    bandwidth: Bandwidth | None
    compared: int
    latecomers: tuple[Latecomer, ...]


class CallCount(msgspec.Struct, frozen=True):
    """Calls of one rank.

    Attributes:
        rank: Global rank.
        operation: `all_reduce`, `send`, …
        calls: Number of its calls.
        open: Number of them that have not ended.
    """

    rank: int
    operation: str
    calls: int
    open: int


class CountDifference(msgspec.Struct, frozen=True):
    """Ranks that should have called an operation the same number of times, and have not.

    Attributes:
        group: The process group.
        operation: The operation; `send` for a send and its receive.
        ends: Sender and receiver; null for a collective.
        first_sequence: The sequence from which on calls count, because some before it are missing; null if all count.
        counts: By ascending rank, ranks without a call too.
    """

    group: GroupRef
    operation: str
    ends: tuple[int, int] | None
    first_sequence: int | None
    counts: tuple[CallCount, ...]


class CallTotals(msgspec.Struct, frozen=True):
    """The calls of one rank.

    Attributes:
        rank: Global rank.
        host: Host name; null if it is not known.
        calls: Its calls.
        open: Calls that have not ended.
        failed: Calls that raised.
        lost: Calls that are known to be missing, before `from_ns` or damaged.
        message_bytes: Bytes that it contributed.
        from_ns: Entry of its first call, in nanoseconds since the epoch; null without calls.
        until_ns: Entry or end of its last call.
        span_ns: Time from the first to the last.
        communicating_ns: Time in which at least one of its calls was in flight; open ones do not count. Null if that
            is not known of any.
        waiting_ns: Time in which it waited for another rank, each moment once; null if that is not known of any call.
        compared: Operations at which its arrival was compared with those of all other members.
        came_last: Number of these at which it arrived last.
    """

    rank: int
    host: str | None
    calls: int
    open: int
    failed: int
    lost: int
    message_bytes: int
    from_ns: int | None
    until_ns: int | None
    span_ns: int
    communicating_ns: int | None
    waiting_ns: int | None
    compared: int
    came_last: int


class Unfinished(msgspec.Struct, frozen=True):
    """An operation that not all members have left.

    Attributes:
        sequence: Its position in the group.
        ends: Sender and receiver; null for a collective.
        operations: Operations that members called there, in alphabetical order.
        missing: Members that have not entered it.
        open: Members that are in it.
    """

    sequence: int
    ends: tuple[int, int] | None
    operations: tuple[str, ...]
    missing: tuple[int, ...]
    open: tuple[int, ...]


class GroupCorrelation(msgspec.Struct, frozen=True):
    """How well the calls of a group's members fit together, and how far apart they arrive.

    Attributes:
        group: The process group.
        point_to_point: Whether these are its sends and receives, which count by sender, receiver and tag.
        known: Members whose calls are known.
        first_sequence: The sequence from which on the calls of all of these are known; 0 if none is missing.
        last_sequence: The highest sequence; null for sends and receives.
        complete: Operations that all of these have entered and left.
        open: Operations that all have entered, and not all have left.
        incomplete: Operations that not all have entered.
        mismatched: Operations at which members called something different.
        unfinished: The newest that are open or incomplete, at most 32.
        skewed: Complete operations whose times of arrival could be compared.
        skew_median_ns: Time between the first arrival and the last, at the median; null if none could be compared.
        skew_p99_ns: The same, 99th percentile.
        skew_max_ns: The same, at most.
    """

    group: GroupRef
    point_to_point: bool
    known: int
    first_sequence: int
    last_sequence: int | None
    complete: int
    open: int
    incomplete: int
    mismatched: int
    unfinished: tuple[Unfinished, ...]
    skewed: int
    skew_median_ns: int | None
    skew_p99_ns: int | None
    skew_max_ns: int | None


class Statistics(msgspec.Struct, frozen=True):
    """The statistics of a run.

    Attributes:
        by: Properties that distinguish rows: some of `operation`, `group`, `size`, `site`, `rank`, `phase`.
        differences: Where members of a group have not called an operation equally often.
        rows: Calls, by the properties that they have in common.
        ranks: The ranks that were asked for and whose calls are known, ascending.
        groups: Groups of these ranks whose members can be compared.
    """

    by: tuple[Part, ...]
    differences: tuple[CountDifference, ...]
    rows: tuple[Row, ...]
    ranks: tuple[CallTotals, ...]
    groups: tuple[GroupCorrelation, ...]
