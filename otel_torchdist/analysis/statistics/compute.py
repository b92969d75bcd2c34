"""Computes the statistics of a run from the calls of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from otel_torchdist.analysis.statistics.correlation import Correlator, differences, labels_of
from otel_torchdist.analysis.statistics.grouping import DEFAULT_KEYS, Grouping, GroupingKey, RowKey
from otel_torchdist.analysis.statistics.result import (
    Bandwidth,
    BandwidthOver,
    CallSite,
    CallTotals,
    CountDifference,
    GroupCorrelation,
    GroupRef,
    Latecomer,
    Row,
    Statistics,
)
from otel_torchdist.analysis.statistics.splitting import Splitter
from otel_torchdist.analysis.statistics.tally import KindRow, Tally, percentile, sorted_ns, tallies_of, union_ns
from otel_torchdist.analysis.statistics.traffic import bus_factor, size_of
from otel_torchdist.model.history import RankHistory
from otel_torchdist.model.kinds import RecordKind
from otel_torchdist.sources.history.call_table import RankCalls, table_of
from otel_torchdist.sources.history.meetings import Meeting, SharedChannel, shared_channels


def statistics_of(
    histories: Iterable[RankHistory], keys: Iterable[GroupingKey] = DEFAULT_KEYS, only: Collection[int] | None = None
) -> Statistics:
    """Compute the statistics of a run.

    Args:
        histories: One history per rank, in any order. Each is reduced to columns before the next is taken.
        keys: The keys by which calls are grouped into rows.
        only: The ranks whose calls count in rows and totals; None for all. Waiting times depend on the others as well.
    """
    return statistics_of_calls(table_of(histories).ranks, keys, only)


class Observer(Protocol):
    """A receiver of all matched calls, besides the statistics."""

    def add(self, meeting: Meeting) -> None:
        """Receive the calls of all members at one position of a channel."""
        ...


def statistics_of_calls(
    by_rank: Mapping[int, RankCalls],
    keys: Iterable[GroupingKey] = DEFAULT_KEYS,
    only: Collection[int] | None = None,
    observers: Sequence[Observer] = (),
) -> Statistics:
    """Compute the statistics of a run from columns of calls.

    Args:
        by_rank: The calls, by rank.
        keys: The keys by which calls are grouped into rows.
        only: The ranks whose calls count in rows and totals; None for all.
        observers: Receive all matched calls in the same pass, because a second pass would take nearly as long.
    """
    keys = tuple(key for key in GroupingKey if key in set(keys))
    ranks = {rank: by_rank[rank] for rank in sorted(by_rank)}
    chosen = [calls for calls in ranks.values() if only is None or calls.rank in only]
    rows: dict[RowKey, Tally] = {}
    counted = {calls.rank: _count(calls, rows, Grouping(keys)) for calls in chosen}
    splitter = Splitter(ranks, {rank: of_rank.rows for rank, of_rank in counted.items()})
    shared = [
        channel for channel in shared_channels(ranks) if only is None or not set(only).isdisjoint(channel.expected)
    ]
    labels = labels_of(calls.groups for calls in ranks.values())
    groups = _correlated(shared, (splitter, *observers), ranks, labels)
    splitter.finish()
    differing = differences(shared, labels)
    members = {key: len(view.members) for calls in ranks.values() for key, view in calls.groups.items()}
    return Statistics(
        by=keys,
        differences=tuple(differing),
        rows=tuple(
            _row(key, tally, labels.get(key.group or "", ""), members.get(key.group or "", 0), differing)
            for key, tally in rows.items()
        ),
        ranks=tuple(_totals(calls, counted[calls.rank], splitter) for calls in chosen),
        groups=tuple(groups),
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """The counts of one rank's calls.

    Attributes:
        rows: The row of each kind, by index.
        open: Calls in flight.
        failed: Calls that raised.
        message_bytes: Bytes that the rank contributed.
    """

    rows: Sequence[KindRow]
    open: int
    failed: int
    message_bytes: int


def _count(calls: RankCalls, rows: dict[RowKey, Tally], grouping: Grouping) -> _Counted:
    """Add the calls of one rank to the rows."""
    tallies = tallies_of(calls)
    kind_rows: list[KindRow] = []
    for kind, tally in zip(calls.kinds, tallies, strict=True):
        size = size_of(kind)
        row = rows.setdefault(grouping.key_of(kind, size, calls.rank), Tally())
        kind_rows.append(KindRow(kind, row, size, bus_factor(kind.operation, kind.members)))
        row.count(calls.rank, kind_rows[-1], tally)
    return _Counted(
        rows=kind_rows,
        open=sum(tally.open for tally in tallies),
        failed=sum(tally.failed for tally in tallies),
        message_bytes=sum(kind.message_bytes * tally.calls for kind, tally in zip(calls.kinds, tallies, strict=True)),
    )


def _correlated(
    shared: Sequence[SharedChannel],
    observers: Sequence[Observer],
    ranks: Mapping[int, RankCalls],
    labels: Mapping[str, str],
) -> list[GroupCorrelation]:
    """Pass all matched calls to the observers, and return the correlation of each group's calls."""
    correlators: dict[tuple[str, bool], Correlator] = {}
    for shared_channel in shared:
        channel = shared_channel.channel
        if channel.kind is not RecordKind.OPERATION:
            continue
        key = channel.group, channel.is_point_to_point
        correlator = correlators.setdefault(key, Correlator(shared_channel))
        for meeting in shared_channel.meetings():
            correlator.add(meeting)
            for observer in observers:
                observer.add(meeting)
    return [correlator.result(ranks, labels) for correlator in correlators.values()]


def _row(key: RowKey, tally: Tally, group_name: str, members: int, differing: Iterable[CountDifference]) -> Row:
    durations = sorted_ns(tally.durations)
    calls = sum(tally.calls.values())
    return Row(
        operation=key.operation,
        group=GroupRef(key.group, group_name, members) if key.group is not None else None,
        size_class=key.size_class,
        call_site=CallSite(*key.site) if key.site is not None else None,
        rank=key.rank,
        phase=key.phase,
        calls=calls,
        calls_by_rank=dict(sorted(tally.calls.items())),
        calls_of_a_rank_min=min(tally.calls.values()),
        calls_of_a_rank_max=max(tally.calls.values()),
        counts_differ=any(_concerns(difference, tally) for difference in differing),
        open=tally.open,
        failed=tally.failed,
        not_timed=calls - tally.open - tally.failed - len(durations),
        timed=len(durations),
        message_bytes=tally.message_bytes,
        time_ns=sum(durations),
        median_ns=percentile(durations, 0.5) if durations else None,
        p99_ns=percentile(durations, 0.99) if durations else None,
        split=tally.split,
        wait_ns=tally.waited_ns,
        transfer_ns=tally.transfer_ns,
        bandwidth=_bandwidth(tally),
        compared=tally.compared,
        latecomers=_latecomers(tally),
    )


def _concerns(difference: CountDifference, tally: Tally) -> bool:
    """Return whether a row contains calls whose number differs between ranks."""
    if difference.group.key not in tally.groups:
        return False
    return any(count.operation in tally.operations and count.rank in tally.calls for count in difference.counts)


def _bandwidth(tally: Tally) -> Bandwidth | None:
    over, moved = BandwidthOver.TRANSFER, tally.transfers
    if moved.algorithm_bandwidth is None:
        over, moved = BandwidthOver.DURATION, tally.throughput
    algorithm, bus = moved.algorithm_bandwidth, moved.bus_bandwidth
    return None if algorithm is None or bus is None else Bandwidth(algorithm, bus, over)


def _latecomers(tally: Tally) -> tuple[Latecomer, ...]:
    latecomers = [
        Latecomer(rank, len(lateness), percentile(sorted_ns(lateness), 0.5))
        for rank, lateness in tally.lateness.items()
    ]
    return tuple(sorted(latecomers, key=lambda latecomer: (-latecomer.times, -latecomer.median_ns, latecomer.rank)))


def _totals(calls: RankCalls, counted: _Counted, splitter: Splitter) -> CallTotals:
    first_ns, offset_ns = calls.first_ns, calls.wall_offset_ns
    in_flight = list(calls.in_flight())
    return CallTotals(
        rank=calls.rank,
        host=calls.host or None,
        calls=len(calls),
        open=counted.open,
        failed=counted.failed,
        lost=calls.lost,
        message_bytes=counted.message_bytes,
        from_ns=first_ns + offset_ns if first_ns is not None else None,
        until_ns=calls.last_ns + offset_ns if first_ns is not None else None,
        span_ns=calls.last_ns - first_ns if first_ns is not None else 0,
        communicating_ns=union_ns(in_flight) if in_flight else None,
        waiting_ns=splitter.waiting_ns(calls.rank),
        compared=splitter.compared[calls.rank],
        came_last=splitter.came_last[calls.rank],
    )
