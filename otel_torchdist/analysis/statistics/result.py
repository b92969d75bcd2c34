"""The statistics of a run as JSON. Numbers are raw, in bytes, nanoseconds and bytes per second."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from otel_torchdist.analysis.statistics.grouping import GroupingKey

MAX_LISTED: int = 32
"""Upper bound on the unfinished operations that a group lists."""


class GroupRef(msgspec.Struct, frozen=True):
    """A process group.

    Attributes:
        key: Key of the group, the same on all members.
        name: Name of the group in sentences.
        members: Number of ranks; 0 if unknown.
    """

    key: str
    name: str
    members: int


class CallSite(msgspec.Struct, frozen=True):
    """A line of code that calls operations. All fields are empty if the line is unknown.

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
    """From the last arrival to the end, as in a benchmark whose ranks all begin together."""
    DURATION = "duration"
    """From the call to the end, including the wait for other ranks: a lower bound."""


class Bandwidth(msgspec.Struct, frozen=True):
    """Bandwidth as defined by nccl-tests.

    Attributes:
        algorithm_bytes_per_second: Size of the operation divided by its time.
        bus_bytes_per_second: Algorithm bandwidth times a factor, comparable with the hardware for any number of ranks.
        over: `transfer`; or `duration` if the last arrival is unknown, which gives a lower bound.
    """

    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    over: BandwidthOver


class Latecomer(msgspec.Struct, frozen=True):
    """A rank that arrived last.

    Attributes:
        rank: Global rank.
        times: Number of operations at which the rank arrived last.
        median_ns: Median time for which the others waited for this rank alone.
    """

    rank: int
    times: int
    median_ns: int


class Row(msgspec.Struct, frozen=True):
    """Calls that share the properties by which rows are grouped.

    Attributes:
        operation: `all_reduce`, `send`, …; like the fields up to `phase`, null if rows are not grouped by it.
        group: The process group.
        size_class: Class of the message size; `none` for operations that move no data, `unknown` for unknown sizes.
        call_site: The call site.
        rank: Global rank.
        phase: `backward`, `outside_backward` or `unknown`.
        calls: Calls of all ranks.
        calls_by_rank: Calls of each rank.
        calls_of_a_rank_min: Calls of the rank with the fewest.
        calls_of_a_rank_max: Calls of the rank with the most.
        counts_differ: Whether members of a group called one of these operations a different number of times.
        open: Calls in flight.
        failed: Calls that raised.
        not_timed: Calls that ended without an exception, but without an exact start and end.
        timed: Calls with an exact start and end. Ends seen by a poll or a watchdog are not exact.
        message_bytes: Bytes that ranks contributed.
        time_ns: Sum of the durations of timed calls.
        median_ns: Median duration of timed calls; null if there are none. Percentiles are exact (nearest rank).
        p99_ns: 99th percentile of the durations of timed calls.
        split: Timed calls with a known last arrival.
        wait_ns: Time that split calls waited for the last arrival.
        transfer_ns: Time that split calls took after the last arrival.
        bandwidth: Bandwidth of timed calls; null if none moved bytes.
        compared: Operations at which a call of this row was the only last arrival.
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

    @property
    def estimated_ns(self) -> int:
        """Sum of the durations of all ended calls, if those without an exact end took as long as the timed ones.

        On devices only a sample of asynchronous calls is timed, so sums of timed calls cannot be compared.
        """
        return self.time_ns * (self.timed + self.not_timed) // self.timed if self.timed else 0


class CallCount(msgspec.Struct, frozen=True):
    """Calls of one rank.

    Attributes:
        rank: Global rank.
        operation: `all_reduce`, `send`, …
        calls: Number of calls.
        open: Number of calls in flight.
    """

    rank: int
    operation: str
    calls: int
    open: int


class CountDifference(msgspec.Struct, frozen=True):
    """A difference in the number of calls between ranks that should call an operation equally often.

    Attributes:
        group: The process group.
        operation: The operation; `send` for a send and its receive.
        ends: Sender and receiver; null for a collective.
        first_sequence: First sequence that is compared, because earlier calls are missing; null if all are compared.
        counts: Counts by ascending rank, including ranks without a call.
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
        host: Host name; null if unknown.
        calls: Number of calls.
        open: Calls in flight.
        failed: Calls that raised.
        lost: Calls known to be missing: overwritten before `from_ns`, or damaged.
        message_bytes: Bytes that the rank contributed.
        from_ns: Entry of the first call, in nanoseconds since the epoch; null without calls.
        until_ns: Entry or end of the last call, in nanoseconds since the epoch; null without calls.
        span_ns: Time from `from_ns` to `until_ns`.
        communicating_ns: Time in which at least one call was in flight, not counting calls without an end; null if
            unknown for all calls. An upper bound if many calls are not timed, because their ends are known late.
        waiting_ns: Time in which the rank waited for others, with overlaps counted once; null if unknown for all calls.
        compared: Operations at which the rank's arrival was compared with all other members.
        came_last: Compared operations at which the rank arrived last.
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
    """An operation that some members have not left.

    Attributes:
        sequence: Position in the group.
        ends: Sender and receiver; null for a collective.
        operations: Operations that members called at this position, in alphabetical order.
        missing: Members that have not entered.
        open: Members that have entered and not left.
    """

    sequence: int
    ends: tuple[int, int] | None
    operations: tuple[str, ...]
    missing: tuple[int, ...]
    open: tuple[int, ...]


class GroupCorrelation(msgspec.Struct, frozen=True):
    """The completeness of a group's operations, and the skew of its members' arrivals.

    Attributes:
        group: The process group.
        point_to_point: Whether these are the group's sends and receives, which are counted by sender, receiver and tag.
        known: Number of members with records.
        first_sequence: First sequence from which the calls of all known members are recorded; 0 if none is missing.
        last_sequence: The highest sequence; null for sends and receives.
        complete: Operations that all known members have entered and left.
        open: Operations that all known members have entered, and some have not left.
        incomplete: Operations that some known members have not entered.
        mismatched: Operations at which members made different calls.
        unfinished: The newest open or incomplete operations, at most 32.
        skewed: Complete operations with comparable arrival times.
        skew_median_ns: Time between the first and the last arrival, median; null if no arrivals are comparable.
        skew_p99_ns: Time between the first and the last arrival, 99th percentile.
        skew_max_ns: Time between the first and the last arrival, maximum.
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
        by: Properties that rows are grouped by: some of `operation`, `group`, `size`, `site`, `rank`, `phase`.
        differences: Operations that members of a group did not call equally often.
        rows: Calls, grouped by these properties.
        ranks: Totals of the requested ranks with records, ascending.
        groups: Groups of these ranks whose members can be compared.
    """

    by: tuple[GroupingKey, ...]
    differences: tuple[CountDifference, ...]
    rows: tuple[Row, ...]
    ranks: tuple[CallTotals, ...]
    groups: tuple[GroupCorrelation, ...]
