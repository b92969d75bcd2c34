"""Computes the statistics of a run from the histories of its ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from otel_torchdist.analysis.statistics.grouping import DEFAULT_PARTS, Grouping, Part, RowKey
from otel_torchdist.analysis.statistics.groups import Correlator, differences, labels_of
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
    histories: Iterable[RankHistory], parts: Iterable[Part] = DEFAULT_PARTS, only: Collection[int] | None = None
) -> Statistics:
    """Compute the statistics of a run.

    Args:
        histories: One history per rank, in any order. Each is reduced to numbers before the next one is taken.
        parts: What distinguishes rows.
        only: The ranks whose calls are in rows and totals; None for all. Waiting depends on the others as well.
    """
    return statistics_of_calls(table_of(histories).ranks, parts, only)


class Observer(Protocol):
    """What looks at meetings as well."""

    def add(self, meeting: Meeting) -> None:
        """Look at a meeting."""
        ...


def statistics_of_calls(
    taken: Mapping[int, RankCalls],
    parts: Iterable[Part] = DEFAULT_PARTS,
    only: Collection[int] | None = None,
    observers: Sequence[Observer] = (),
) -> Statistics:
    """Compute the statistics of calls that are in columns already.

    Args:
        taken: The calls, by rank.
        parts: What distinguishes rows.
        only: The ranks whose calls are in rows and totals; None for all.
        observers: See all meetings too: to go over them takes most of the time.
    """
    parts = tuple(part for part in Part if part in set(parts))
    ranks = {rank: taken[rank] for rank in sorted(taken)}
    chosen = [rank for rank in ranks.values() if only is None or rank.rank in only]
    rows: dict[RowKey, Tally] = {}
    counted = {rank.rank: _count(rank, rows, Grouping(parts)) for rank in chosen}
    splitter = Splitter(ranks, {rank: one.rows for rank, one in counted.items()})
    shared = [one for one in shared_channels(ranks) if only is None or not set(only).isdisjoint(one.expected)]
    labels = labels_of(rank.groups for rank in ranks.values())
    groups = _correlated(shared, (splitter, *observers), ranks, labels)
    splitter.finish()
    found = differences(shared, labels)
    members = {key: len(view.members) for rank in ranks.values() for key, view in rank.groups.items()}
    return Statistics(
        by=parts,
        differences=tuple(found),
        rows=tuple(
            _row(key, tally, labels.get(key.group or "", ""), members.get(key.group or "", 0), found)
            for key, tally in rows.items()
        ),
        ranks=tuple(_totals(rank, counted[rank.rank], splitter) for rank in chosen),
        groups=tuple(groups),
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """The calls of one rank, counted.

    Attributes:
        rows: By index of kind, the row that the calls are in.
        open: Calls that have not ended.
        failed: Calls that raised.
        message_bytes: Bytes that the rank contributed.
    """

    rows: Sequence[KindRow]
    open: int
    failed: int
    message_bytes: int


def _count(calls: RankCalls, rows: dict[RowKey, Tally], grouping: Grouping) -> _Counted:
    """Add the calls of one rank to the rows."""
    counted = tallies_of(calls)
    own: list[KindRow] = []
    for kind, tally in zip(calls.kinds, counted, strict=True):
        size = size_of(kind)
        row = rows.setdefault(grouping.key_of(kind, size, calls.rank), Tally())
        own.append(KindRow(kind, row, size, bus_factor(kind.operation, kind.members)))
        row.count(calls.rank, own[-1], tally)
    return _Counted(
        rows=own,
        open=sum(one.open for one in counted),
        failed=sum(one.failed for one in counted),
        message_bytes=sum(kind.message_bytes * one.calls for kind, one in zip(calls.kinds, counted, strict=True)),
    )


def _correlated(
    shared: Sequence[SharedChannel],
    observers: Sequence[Observer],
    ranks: Mapping[int, RankCalls],
    labels: Mapping[str, str],
) -> list[GroupCorrelation]:
    """Show all meetings to observers; returns how the calls of each group fit together."""
    correlators: dict[tuple[str, bool], Correlator] = {}
    for one in shared:
        if one.channel.kind is not RecordKind.OPERATION:
            continue
        correlator = correlators.setdefault((one.channel.group, one.channel.is_point_to_point), Correlator(one))
        for meeting in one.meetings():
            correlator.add(meeting)
            for observer in observers:
                observer.add(meeting)
    return [correlator.result(ranks, labels) for correlator in correlators.values()]


def _row(key: RowKey, tally: Tally, group_name: str, members: int, found: Iterable[CountDifference]) -> Row:
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
        counts_differ=any(_concerns(one, tally) for one in found),
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
    """Whether calls of a row are among those whose number differs."""
    if difference.group.key not in tally.groups:
        return False
    return any(count.operation in tally.operations and count.rank in tally.calls for count in difference.counts)


def _bandwidth(tally: Tally) -> Bandwidth | None:
    over, moved = BandwidthOver.TRANSFER, tally.transferred
    if moved.algorithm_bandwidth is None:
        over, moved = BandwidthOver.DURATION, tally.lasted
    algorithm, bus = moved.algorithm_bandwidth, moved.bus_bandwidth
    return None if algorithm is None or bus is None else Bandwidth(algorithm, bus, over)


def _latecomers(tally: Tally) -> tuple[Latecomer, ...]:
    found = [
        Latecomer(rank, len(lateness), percentile(sorted_ns(lateness), 0.5))
        for rank, lateness in tally.lateness.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.times, -one.median_ns, one.rank)))


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
