"""The statistics of a run. Frozen data only; numbers are raw, in bytes, nanoseconds and bytes per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from otel_torchdist.statistics.correlation import GroupCorrelation
from otel_torchdist.statistics.counts import CountDifference
from otel_torchdist.statistics.grouping import Part, RowKey


class BandwidthOver(Enum):
    """The time over which bandwidth was measured."""

    TRANSFER = "transfer"
    """From the last arrival to the end, as in a benchmark in which all ranks begin together."""
    DURATION = "duration"
    """From the call to the end, including the wait for other ranks: a lower bound."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bandwidth in the sense of nccl-tests, in bytes per second; see `traffic`."""

    algorithm: float
    bus: float
    over: BandwidthOver


@dataclass(frozen=True, slots=True)
class Latecomer:
    """A rank that arrived last.

    Attributes:
        rank: Global rank.
        times: How often.
        median_ns: How long the others waited for it alone, at the median.
    """

    rank: int
    times: int
    median_ns: int


@dataclass(frozen=True, slots=True)
class Row:
    """What the calls with one key add up to.

    Attributes:
        key: What they have in common.
        group_name: How their group is called in sentences; '' if it is not known, or does not distinguish rows.
        members: How many ranks that has; 0 likewise.
        calls_by_rank: How many calls each rank has made.
        counts_differ: Whether members of a group have called one of these operations a different number of times.
        open: Calls that have not ended.
        failed: Calls that raised.
        message_bytes: Bytes that ranks contributed.
        timed: Calls whose begin and end are known well. Neither are those that only a poll or a watchdog saw end.
        time_ns: Sum of their durations.
        median_ns: Median of their durations; None if there is none. Percentiles are exact, by the nearest rank.
        p99_ns: 99th percentile of their durations; None if there is none.
        split: Timed calls for which it is known when the rank arrived for which they wait.
        wait_ns: How long these waited for it.
        transfer_ns: How long these took after that.
        bandwidth: None if no timed call moved bytes.
        compared: Operations at which the last arrival was determined, counted where the rank that arrived last has its
            calls; those at which several arrived last do not count.
        latecomers: The ranks that arrived last, most frequent first.
    """

    key: RowKey
    group_name: str
    members: int
    calls_by_rank: Mapping[int, int]
    counts_differ: bool
    open: int
    failed: int
    message_bytes: int
    timed: int
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
    def calls(self) -> int:
        """Calls of all ranks."""
        return sum(self.calls_by_rank.values())

    @property
    def not_timed(self) -> int:
        """Calls that have ended without an exception, and whose begin or end is not known well."""
        return self.calls - self.open - self.failed - self.timed


@dataclass(frozen=True, slots=True)
class RankTotals:
    """One rank.

    Attributes:
        rank: Global rank.
        host: Host name, or '' if it is not known.
        calls: Its calls.
        open: Those that have not ended.
        failed: Those that raised.
        lost: Calls that are known to be missing, before `from_ns` or damaged.
        message_bytes: Bytes that it contributed.
        from_ns: When the first of its calls was entered, in nanoseconds since the epoch; None without calls.
        until_ns: When the last of its calls was entered or ended.
        communicating_ns: Time in which at least one of its calls was in flight; open ones do not count. None if that
            is not known of any.
        waiting_ns: Time in which it waited for another rank, each moment once, as far as that is known; None if it is
            not known of any call.
        compared: Operations at which its arrival was compared with those of all other members.
        came_last: At how many of them it arrived last.
    """

    rank: int
    host: str
    calls: int
    open: int
    failed: int
    lost: int
    message_bytes: int
    from_ns: int | None
    until_ns: int | None
    communicating_ns: int | None
    waiting_ns: int | None
    compared: int
    came_last: int

    @property
    def span_ns(self) -> int:
        """The time that its calls span."""
        return self.until_ns - self.from_ns if self.from_ns is not None and self.until_ns is not None else 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """The statistics of a run.

    Attributes:
        world_size: Ranks of the job; 0 if that is not known.
        parts: What distinguishes rows.
        differences: Where members of a group have not called an operation equally often.
        rows: Calls, by what they have in common.
        ranks: The ranks that were asked for and whose calls are known, ascending.
        groups: Groups of these ranks whose members can be compared.
        unknown: Ranks of the job without a history.
    """

    world_size: int
    parts: tuple[Part, ...]
    differences: tuple[CountDifference, ...]
    rows: tuple[Row, ...]
    ranks: tuple[RankTotals, ...]
    groups: tuple[GroupCorrelation, ...]
    unknown: tuple[int, ...]
